package faults

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
	"sluice/test/vm/guest"
)

// memoryLimit is how many bytes the daemon's cgroup has: some more than a daemon needs that serves little.
const memoryLimit = 24 << 20

// TestMemoryLimit runs the daemon in a cgroup with little memory, and has it collect no garbage but
// because of the limit: it lives, and follows every change. Then comes a change that
// needs more than there is, and the kernel kills the daemon, again and again as it is restarted.
// What was in force stays in force, for open connections and new ones. With room enough the
// next daemon writes what has changed, and nothing else. In mode userspace connections are
// the daemon's, and end with it.
func TestMemoryLimit(t *testing.T) {
	if os.Getenv(guest.DaemonVariable) == "" {
		t.Skip("no machine but a virtual one is sure to account memory by cgroups: test/kernels plays this there")
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			bed, g := testbed.NewFor(t, mode), newMemoryCgroup(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d := bed.Start(g.join)
			bed.AwaitSync()
			w := countWrites(bed)
			cost := costOfAnother(bed, w)
			d.End(syscall.SIGTERM)

			g.limit(memoryLimit)
			outgrow(bed, g)
			d = bed.Start(func(c *exec.Cmd) { g.join(c); c.Env = append(os.Environ(), "GOGC=off") })
			bed.AwaitSync()
			open := bed.OpenEcho()
			bearLimit(bed, g, mode)
			hitLimit(bed, d, g, mode, func() {
				if mode != "userspace" {
					bed.WantAlive(open, "without a daemon")
				}
				w.taken()
			})
			bed.AwaitSync()
			if written := w.taken(); len(written) != cost {
				t.Errorf("%d objects were written for a Service, want %d as when nobody is killed: %.10q", len(written), cost, written)
			}
			bed.AwaitFreshRules(mode)
		})
	}
}

// outgrow starts a daemon that does not heed the limit, and wants it killed.
func outgrow(bed *testbed.Testbed, g *memoryCgroup) {
	bed.T.Helper()
	d := bed.Start(func(c *exec.Cmd) { g.join(c); c.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=off") })
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 200 {
		annotate(bed, bulk+i)
		select {
		case <-d.Done:
			if !g.killed(d) {
				bed.T.Fatalf("the daemon has ended by itself")
			}
			return
		case <-tick.C:
		}
	}
	bed.T.Fatalf("a daemon that does not heed its limit lives, so that one that does proves nothing: %s", g.read("memory.stat"))
}

// bearLimit changes Services near the limit.
func bearLimit(bed *testbed.Testbed, g *memoryCgroup, mode string) {
	bed.T.Helper()
	load := bed.Load(2, testbed.ClusterIP)
	var repairs []time.Duration
	most := g.peak(func() { repairs = churnBulky(bed) })
	made, failed := load()
	bed.Report(failed)
	if n := g.kills(); n != g.seen {
		bed.T.Errorf("it was killed: %d bytes were in use, there are %d", most, memoryLimit)
	}
	if most < memoryLimit*3/4 {
		bed.T.Errorf("no more than %d of %d bytes were in use", most, memoryLimit)
	}
	reliability.Record(bed.T, reliability.Result{
		Fault: "memory of the cgroup used up but for a little", Mode: mode, Tried: 1, Requests: made, Failed: len(failed), Repairs: repairs,
		Note: fmt.Sprintf("%d of %d KiB at most; a daemon that does not heed the limit is killed; a repair is a change that comes through", most>>10, memoryLimit>>10),
	})
}

// hitLimit makes a change that needs more than the limit, and has the daemon started again
// and again. Then there is room enough.
func hitLimit(bed *testbed.Testbed, d *testbed.Daemon, g *memoryCgroup, mode string, meanwhile func()) {
	bed.T.Helper()
	load := bed.Load(2, testbed.ClusterIP)
	without := testbed.Gap{From: time.Now()}
	annotate(bed, memoryLimit/3) // it is read as a whole, and then made an object of
	const tries = 3
	for i := range tries {
		if i > 0 {
			d = bed.Start(g.join)
		}
		if !g.killed(d) {
			bed.T.Fatalf("it is not killed, though it needs more than %d bytes", memoryLimit)
		}
	}
	bed.Write("late.yaml", testbed.Service("late", late, testbed.PodA))
	meanwhile()
	g.limit(-1)
	began := time.Now()
	d = bed.Start(g.join)
	without.Until = d.Synced
	testbed.EventuallyWithin(bed.T, time.Minute, "what did not fit before", bed.Answers(late, testbed.PodA))
	took := time.Since(began)
	made, failed := load()
	note := ""
	if mode == "userspace" {
		note = "the daemon carries the connections: all that failed were under way while none ran"
		bed.Report(testbed.Outside(failed, without))
	} else {
		bed.Report(failed)
	}
	reliability.Record(bed.T, reliability.Result{
		Fault: "memory limit of the cgroup hit: killed by the kernel", Mode: mode, Tried: tries,
		Requests: made, Failed: len(failed), Repairs: []time.Duration{took}, Note: note,
	})
}

// costOfAnother returns how many objects are written for a Service that comes, and takes it away again.
func costOfAnother(bed *testbed.Testbed, w *writes) int {
	bed.T.Helper()
	w.taken()
	bed.Write("late.yaml", testbed.Service("late", late, testbed.PodA))
	testbed.Eventually(bed.T, "another Service", bed.Answers(late, testbed.PodA))
	bed.AwaitSync()
	n := len(w.taken())
	if err := os.Remove(filepath.Join(bed.Dir, "late.yaml")); err != nil {
		bed.T.Fatal(err)
	}
	testbed.Eventually(bed.T, "its end", func() bool { return !bed.Answers(late, testbed.PodA)() })
	return n
}

// bulk is how many bytes of a file make the daemon take some memory.
const bulk = 1 << 20

// churnBulky replaces the endpoint of a Service, beside a file that takes much memory to read, and
// returns how long each change took.
func churnBulky(bed *testbed.Testbed) (took []time.Duration) {
	bed.T.Helper()
	for i := range 10 {
		began, to := time.Now(), []netip.Addr{testbed.PodA, testbed.PodB}[i%2]
		annotate(bed, bulk+i)
		bed.Write("bulky.yaml", testbed.Service("bulky", bulkyIP, to))
		testbed.Eventually(bed.T, "a change", bed.Answers(bulkyIP, to))
		took = append(took, time.Since(began))
	}
	return took
}

var bulkyIP = netip.MustParseAddrPort("172.30.0.50:80")

// annotate writes a Service with a note that nobody reads.
func annotate(bed *testbed.Testbed, size int) {
	bed.T.Helper()
	svc := serviceWith("default", "annotated", "172.30.0.51", v1.ServicePort{Port: 80})
	svc.Annotations = map[string]string{"note": strings.Repeat("x", size)}
	writeObjects(bed, "annotated.json", svc)
}

// memoryCgroup is a cgroup whose memory is limited.
type memoryCgroup struct {
	t    *testing.T
	dir  *os.File
	seen int // kills
}

func newMemoryCgroup(t *testing.T) *memoryCgroup {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		t.Fatal(err)
	}
	path, err := os.MkdirTemp(root, "sluice-memory-")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = dir.Close()
		_ = os.Remove(path) // the daemon ends with the testbed, maybe later
	})
	return &memoryCgroup{t: t, dir: dir}
}

// join has a program start in the cgroup.
func (g *memoryCgroup) join(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.dir.Fd())}
}

func (g *memoryCgroup) read(file string) string {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir.Name(), file))
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// limit sets how many bytes there are; -1: as many as the machine has.
func (g *memoryCgroup) limit(n int) {
	g.t.Helper()
	text := "max"
	if n >= 0 {
		text = strconv.Itoa(n)
	}
	if err := os.WriteFile(filepath.Join(g.dir.Name(), "memory.max"), []byte(text), 0); err != nil {
		g.t.Fatal(err)
	}
}

// kills returns how many processes the kernel has killed for want of memory.
func (g *memoryCgroup) kills() int {
	g.t.Helper()
	_, text, _ := strings.Cut(g.read("memory.events"), "oom_kill ")
	text, _, _ = strings.Cut(text, "\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// peak returns the most memory that was in use while something was done.
func (g *memoryCgroup) peak(do func()) int {
	g.t.Helper()
	var most atomic.Int64
	done := make(chan struct{})
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			text, _ := os.ReadFile(filepath.Join(g.dir.Name(), "memory.current"))
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			most.Store(max(most.Load(), n))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	do()
	close(done)
	<-sampled
	return int(most.Load())
}

// killed waits for the end of a daemon, and reports whether the kernel has killed it for want of memory.
func (g *memoryCgroup) killed(d *testbed.Daemon) bool {
	g.t.Helper()
	select {
	case <-d.Done:
	case <-time.After(traffic.Scaled(20 * time.Second)):
		return false
	}
	before := g.seen
	g.seen = g.kills()
	return g.seen > before && d.Cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}
