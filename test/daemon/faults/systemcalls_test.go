package faults

import (
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// faultRounds is how often each fault happens in each mode.
var faultRounds = flag.Int("faults", 0, "let each error of system calls happen by itself, too, so `OFTEN` in each mode")

// faultTime is how long a fault lasts.
const faultTime = 700 * time.Millisecond

// partial are faults of some calls, of all seams.
func partial() (all []*fault) {
	errnos := []unix.Errno{
		unix.ENOBUFS, unix.EMSGSIZE, unix.EINTR, unix.EBUSY, unix.EPERM, unix.ENOENT, unix.ENOMEM, unix.ENOSPC, unix.EMFILE,
	}
	for range *faultRounds {
		for _, e := range errnos {
			all = append(all, &fault{name: unix.ErrnoName(e), share: .3, errnos: []unix.Errno{e}})
		}
	}
	return append(all,
		&fault{name: "with any error", share: .3, errnos: errnos},
		&fault{name: "after half of it was taken", share: .3, errnos: []unix.Errno{unix.ENOBUFS}, half: true},
		&fault{name: "slow", share: .5, delay: 50 * time.Millisecond},
	)
}

// TestSystemCallsFail lets some of the daemon's system calls fail, in every mode, while endpoints
// are replaced and connections are made. No connection may reach an endpoint of another Service,
// and when the calls succeed again everything is correct.
func TestSystemCallsFail(t *testing.T) {
	for _, mode := range append([]string{testbed.Legacy}, testbed.Modes...) {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("still.yaml", strings.Replace(testbed.Service("still", testbed.SecondIP, testbed.PodB), "ports: [{", "type: NodePort\n  ports: [{nodePort: 30080, ", 1))
			if err := bed.Lab.Node().Bind(leaving.Addr()); err != nil {
				t.Fatal(err)
			}
			in, wrap := interpose(t)
			d := bed.Start(wrap, "--iptables-sync-period", "1s", "--ipvs-sync-period", "1s", "--ipvs-min-sync-period", "1ms")
			bed.AwaitSync()
			for _, f := range partial() {
				suffer(bed, in, f, mode)
			}
			refuse(bed, in, &fault{name: "EPERM", errnos: []unix.Errno{unix.EPERM}}, mode)
			refuse(bed, in, &fault{name: "no answer", delay: time.Hour}, mode)
			if d.Cmd.ProcessState != nil {
				t.Error("the daemon has ended")
			}
			loseAddress(bed, in)
			bed.AwaitFreshRules(mode)
		})
	}
}

// late is the address of a Service that comes while calls fail.
var late = netip.MustParseAddrPort("172.30.0.40:80")

// Addresses of the node: one that goes, and one that comes for a while.
var (
	leaving = netip.AddrPortFrom(netip.MustParseAddr("192.168.0.77"), 30080)
	guestIP = netip.MustParseAddr("192.168.0.78")
)

// loseAddress takes an address from the node while it cannot read its addresses. When
// it can again, NodePorts are not to be had there.
func loseAddress(bed *testbed.Testbed, in *interposer) {
	bed.T.Helper()
	if !bed.Answers(leaving, testbed.PodB)() {
		bed.T.Errorf("there is no NodePort at %v", leaving)
	}
	in.begin(&fault{share: 1, errnos: []unix.Errno{unix.EPERM}, at: []seam{routesSeam}})
	if err := bed.Lab.Node().Unbind(leaving.Addr()); err != nil {
		bed.T.Fatal(err)
	}
	testbed.Pause(bed.T, time.Second)
	if n := in.struck(); n > triesIn {
		bed.T.Errorf("addresses were read %d times in a second, in vain", n)
	}
	in.end()
	testbed.Eventually(bed.T, "the end of a NodePort at an address that went", func() bool { return !bed.Answers(leaving, testbed.PodB)() })
}

// suffer lets a fault happen for a while.
func suffer(bed *testbed.Testbed, in *interposer, f *fault, mode string) {
	bed.T.Helper()
	// When a source port comes around again while connection tracking still knows its last
	// connection, the kernel now and then drops the first packet of the new one
	// (insert_failed in /proc/net/stat/nf_conntrack).
	if err := bed.Lab.Refresh(); err != nil {
		bed.T.Fatal(err)
	}
	stop := makeConnections(bed, map[netip.AddrPort][]netip.Addr{testbed.ClusterIP: {testbed.PodA, testbed.PodB}, testbed.SecondIP: {testbed.PodB}})
	change := bed.ReplaceEndpoints()
	in.begin(f)
	testbed.Pause(bed.T, traffic.Scaled(faultTime))
	change()
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	seen, hit := in.end()
	ended := time.Now()
	testbed.Eventually(bed.T, "what was written last, after "+f.name, bed.Answers(testbed.ClusterIP, testbed.PodB))
	bed.AwaitSync()
	took := time.Since(ended)
	tally := stop()
	bed.T.Logf("%s: calls %v, hit %v, right after %v, %v", f.name, seen, hit, took, tally)
	if len(hit) == 0 {
		bed.T.Errorf("%s: no call was hit", f.name)
	}
	for _, note := range tally.wrong[:min(len(tally.wrong), 5)] {
		bed.T.Errorf("%s: %s", f.name, note)
	}
	if mode != "userspace" { // whose connections are made of system calls
		for _, note := range tally.failed[:min(len(tally.failed), 5)] {
			bed.T.Errorf("%s: %s", f.name, note)
		}
	}
	note := ""
	if mode == "userspace" && len(tally.failed) > 0 {
		note = "the daemon carries each connection itself, with the very calls that fail"
	}
	reliability.Record(bed.T, reliability.Result{
		Fault: "system calls fail (" + f.name + ")", Mode: mode, Tried: 1, Note: note,
		Requests: tally.made, Failed: len(tally.failed), Misdirected: len(tally.wrong), Repairs: []time.Duration{took},
	})
}

// triesIn is how many calls a daemon may make in vain in a second: some for each of
// its tries, which come after 100 ms, 200 ms and so on, and for other work.
const triesIn = 100

// refuse refuses every call for a while, or leaves it unanswered. The daemon says so, at
// once where it knows, does not try without end, and leaves what is in force.
func refuse(bed *testbed.Testbed, in *interposer, f *fault, mode string) {
	bed.T.Helper()
	f.share, f.at = 1, kernelSeams
	in.begin(f)
	if err := bed.Lab.Node().Bind(guestIP); err != nil {
		bed.T.Fatal(err)
	}
	bed.Write("late.yaml", testbed.Service("late", late, testbed.PodA))
	testbed.Eventually(bed.T, "a status that tells, "+f.name, func() bool {
		n := nodeStatus(bed)
		return !n.InForce() && (n.Sync.Error != "" || f.errnos == nil)
	})
	before, began := in.struck(), time.Now()
	testbed.Eventually(bed.T, "health that tells, "+f.name, healthIs(bed, http.StatusServiceUnavailable))
	if rate := float64(in.struck()-before) / time.Since(began).Seconds(); rate > triesIn {
		bed.T.Errorf("%s: %.0f calls in a second, all in vain", f.name, rate)
	}
	if text, code := bed.Sluice("status", "--problems"); code != 1 || !strings.Contains(text, "NOT HEALTHY") {
		bed.T.Errorf("%s: status --problems: exit %d, %s", f.name, code, text)
	}
	if bed.Answers(late, testbed.PodA)() || !bed.Answers(testbed.ClusterIP, testbed.PodB)() || !bed.Answers(testbed.SecondIP, testbed.PodB)() {
		bed.T.Errorf("%s: what was in force before is not any more", f.name)
	}
	if err := bed.Lab.Node().Unbind(guestIP); err != nil {
		bed.T.Fatal(err)
	}
	seen, _ := in.end()
	ended := time.Now()
	testbed.Eventually(bed.T, "what was written meanwhile, "+f.name, bed.Answers(late, testbed.PodA))
	bed.AwaitSync()
	took := time.Since(ended)
	bed.T.Logf("%s: calls %v, right after %v", f.name, seen, took)
	testbed.Eventually(bed.T, "health, "+f.name, healthIs(bed, http.StatusOK))
	if err := os.Remove(filepath.Join(bed.Dir, "late.yaml")); err != nil {
		bed.T.Fatal(err)
	}
	testbed.Eventually(bed.T, "the end of a Service", func() bool { return !bed.Answers(late, testbed.PodA)() })
	reliability.Record(bed.T, reliability.Result{Fault: "every system call fails (" + f.name + ")", Mode: mode, Tried: 1, Repairs: []time.Duration{took}})
}

// healthIs returns a condition: the health server answers with a code.
func healthIs(bed *testbed.Testbed, want int) func() bool {
	return func() bool { code, _ := bed.Health(); return code == want }
}

// nodeStatus asks the daemon how it is.
func nodeStatus(bed *testbed.Testbed) (n statusapi.Node) {
	bed.T.Helper()
	if err := statusapi.AtSocket(bed.Socket).Get(bed.T.Context(), statusapi.NodePath, nil, &n); err != nil {
		bed.T.Fatal(err)
	}
	return n
}

// tally is what became of connections.
type tally struct {
	made          int
	failed, wrong []string
}

func (t tally) String() string {
	return fmt.Sprintf("%d connections, %d failed, %d to a wrong endpoint", t.made, len(t.failed), len(t.wrong))
}

// makeConnections makes connections to addresses that some endpoints may answer, until stop
// is called.
func makeConnections(bed *testbed.Testbed, right map[netip.AddrPort][]netip.Addr) (stop func() tally) {
	var mu sync.Mutex
	var out tally
	var running sync.WaitGroup
	done := make(chan struct{})
	for to, by := range right {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				at := time.Now()
				seen, err := bed.Client.Probe(bed.T.Context(), []traffic.Flow{{Protocol: proxy.TCP, Src: testbed.ClientIP, Dst: to, Patience: time.Second}})
				mu.Lock()
				out.made++
				note := fmt.Sprintf("%s: to %v: %v, error %v", at.Format("15:04:05.000"), to, seen, err)
				switch {
				case err != nil || seen[0].Fate != traffic.Answered:
					out.failed = append(out.failed, note)
				case !slices.Contains(by, seen[0].By.Addr()):
					out.wrong = append(out.wrong, note)
				}
				mu.Unlock()
			}
		})
	}
	return func() tally {
		close(done)
		running.Wait()
		return out
	}
}
