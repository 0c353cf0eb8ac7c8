package daemon

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
	for _, name := range append([]string{legacy}, modes...) {
		t.Run(name, func(t *testing.T) {
			mode := name
			if name == legacy {
				mode = "iptables"
			}
			s := newSiteFor(t, mode)
			if name == legacy {
				s.run(legacy, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			}
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("still.yaml", strings.Replace(service("still", secondIP, podB), "ports: [{", "type: NodePort\n  ports: [{nodePort: 30080, ", 1))
			if err := s.lab.Node().Bind(leaving.Addr()); err != nil {
				t.Fatal(err)
			}
			in, wrap := interpose(t)
			d := s.start(wrap, "--iptables-sync-period", "1s", "--ipvs-sync-period", "1s", "--ipvs-min-sync-period", "1ms")
			s.await()
			for _, f := range partial() {
				s.suffer(in, f, name)
			}
			s.refuse(in, &fault{name: "EPERM", errnos: []unix.Errno{unix.EPERM}}, name)
			s.refuse(in, &fault{name: "no answer", delay: time.Hour}, name)
			if d.Cmd.ProcessState != nil {
				t.Error("the daemon has ended")
			}
			s.loseAddress(in)
			s.isAsNew(mode)
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
func (s *site) loseAddress(in *interposer) {
	s.t.Helper()
	if !s.answers(leaving, podB)() {
		s.t.Errorf("there is no NodePort at %v", leaving)
	}
	in.begin(&fault{share: 1, errnos: []unix.Errno{unix.EPERM}, at: []seam{routesSeam}})
	if err := s.lab.Node().Unbind(leaving.Addr()); err != nil {
		s.t.Fatal(err)
	}
	wait(s.t, time.Second)
	if n := in.struck(); n > triesIn {
		s.t.Errorf("addresses were read %d times in a second, in vain", n)
	}
	in.end()
	eventually(s.t, "the end of a NodePort at an address that went", func() bool { return !s.answers(leaving, podB)() })
}

// suffer lets a fault happen for a while.
func (s *site) suffer(in *interposer, f *fault, mode string) {
	s.t.Helper()
	// When a source port comes around again while connection tracking still knows its last
	// connection, the kernel now and then drops the first packet of the new one
	// (insert_failed in /proc/net/stat/nf_conntrack).
	if err := s.lab.Refresh(); err != nil {
		s.t.Fatal(err)
	}
	stop := s.request(map[netip.AddrPort][]netip.Addr{clusterIP: {podA, podB}, secondIP: {podB}})
	change := s.replaceEndpoints()
	in.begin(f)
	wait(s.t, traffic.Scaled(faultTime))
	change()
	s.write("web.yaml", service("web", clusterIP, podB))
	seen, hit := in.end()
	ended := time.Now()
	eventually(s.t, "what was written last, after "+f.name, s.answers(clusterIP, podB))
	s.await()
	took := time.Since(ended)
	tally := stop()
	s.t.Logf("%s: calls %v, hit %v, right after %v, %v", f.name, seen, hit, took, tally)
	if len(hit) == 0 {
		s.t.Errorf("%s: no call was hit", f.name)
	}
	for _, note := range tally.wrong[:min(len(tally.wrong), 5)] {
		s.t.Errorf("%s: %s", f.name, note)
	}
	if mode != "userspace" { // whose connections are made of system calls
		for _, note := range tally.failed[:min(len(tally.failed), 5)] {
			s.t.Errorf("%s: %s", f.name, note)
		}
	}
	note := ""
	if mode == "userspace" && len(tally.failed) > 0 {
		note = "the daemon carries each connection itself, with the very calls that fail"
	}
	reliability.Record(s.t, reliability.Result{
		Fault: "system calls fail (" + f.name + ")", Mode: mode, Tried: 1, Note: note,
		Requests: tally.made, Failed: len(tally.failed), Misdirected: len(tally.wrong), Repairs: []time.Duration{took},
	})
}

// triesIn is how many calls a daemon may make in vain in a second: some for each of
// its tries, which come after 100 ms, 200 ms and so on, and for other work.
const triesIn = 100

// refuse refuses every call for a while, or leaves it unanswered. The daemon says so, at
// once where it knows, does not try without end, and leaves what is in force.
func (s *site) refuse(in *interposer, f *fault, mode string) {
	s.t.Helper()
	f.share, f.at = 1, kernelSeams
	in.begin(f)
	if err := s.lab.Node().Bind(guestIP); err != nil {
		s.t.Fatal(err)
	}
	s.write("late.yaml", service("late", late, podA))
	eventually(s.t, "a status that tells, "+f.name, func() bool {
		n := s.node()
		return !n.InForce() && (n.Sync.Error != "" || f.errnos == nil)
	})
	before, began := in.struck(), time.Now()
	eventually(s.t, "health that tells, "+f.name, func() bool {
		code, _, err := s.get("http://127.0.0.1:10256/healthz")
		return err == nil && code == http.StatusServiceUnavailable
	})
	if rate := float64(in.struck()-before) / time.Since(began).Seconds(); rate > triesIn {
		s.t.Errorf("%s: %.0f calls in a second, all in vain", f.name, rate)
	}
	if text, code := s.tell("status", "--problems"); code != 1 || !strings.Contains(text, "NOT HEALTHY") {
		s.t.Errorf("%s: status --problems: exit %d, %s", f.name, code, text)
	}
	if s.answers(late, podA)() || !s.answers(clusterIP, podB)() || !s.answers(secondIP, podB)() {
		s.t.Errorf("%s: what was in force before is not any more", f.name)
	}
	if err := s.lab.Node().Unbind(guestIP); err != nil {
		s.t.Fatal(err)
	}
	seen, _ := in.end()
	ended := time.Now()
	eventually(s.t, "what was written meanwhile, "+f.name, s.answers(late, podA))
	s.await()
	took := time.Since(ended)
	s.t.Logf("%s: calls %v, right after %v", f.name, seen, took)
	eventually(s.t, "health, "+f.name, func() bool {
		code, _, err := s.get("http://127.0.0.1:10256/healthz")
		return err == nil && code == http.StatusOK
	})
	if err := os.Remove(filepath.Join(s.dir, "late.yaml")); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "the end of a Service", func() bool { return !s.answers(late, podA)() })
	reliability.Record(s.t, reliability.Result{Fault: "every system call fails (" + f.name + ")", Mode: mode, Tried: 1, Repairs: []time.Duration{took}})
}

// node asks the daemon how it is.
func (s *site) node() (n statusapi.Node) {
	s.t.Helper()
	if err := statusapi.AtSocket(s.socket).Get(s.t.Context(), statusapi.NodePath, nil, &n); err != nil {
		s.t.Fatal(err)
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

// request makes connections to addresses that some endpoints may answer, until stop
// is called.
func (s *site) request(right map[netip.AddrPort][]netip.Addr) (stop func() tally) {
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
				seen, err := s.client.Probe(s.t.Context(), []traffic.Flow{{Protocol: proxy.TCP, Src: client, Dst: to, Patience: time.Second}})
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
