package traffic

import (
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
	"sluice/test/daemon/testbed"
)

// TestUntracked has the daemon not track connections between pods: it begins by itself,
// a connection outlasts a kill, a start without the flag and the clean-up, and what is
// not tracked leaves nothing behind.
func TestUntracked(t *testing.T) {
	bed := testbed.NewFor(t, "ebpf")
	bed.ServeEcho(testbed.ClusterIP)
	before := bed.Ruleset()
	const flag, pods = "--ebpf-untracked-cidrs", "10.0.0.0/8"
	d := bed.Start(nil, flag, pods)
	testbed.Eventually(t, "connections between pods that are not tracked", untrackedMetric(bed, "1"))

	var open net.Conn
	testbed.Eventually(t, "a connection that is not tracked", func() bool { // the first ones of a pod go by the rules
		if err := bed.Lab.Node().FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		open = dialEcho(bed)
		bed.WantAlive(open, "at first")
		return trackedConnections(bed) == 0
	})
	if strings.Contains(d.Log(), "Repaired") {
		t.Errorf("what begins is called a repair:\n%s", d.Log())
	}
	d.End(syscall.SIGKILL)
	bed.WantAlive(open, "after a kill")
	d = bed.Start(nil, flag, pods)
	testbed.Eventually(t, "the same after a restart", untrackedMetric(bed, "1"))
	bed.WantAlive(open, "after a restart")

	d.End(syscall.SIGTERM)
	d = bed.Start(nil)
	testbed.Eventually(t, "connections that are tracked again", untrackedMetric(bed, "0"))
	bed.WantAlive(open, "that is tracked from now on")
	bed.WantAlive(dialEcho(bed), "that was always tracked")
	if trackedConnections(bed) == 0 {
		t.Error("no connection between pods is tracked")
	}

	d.End(syscall.SIGTERM)
	testbed.Eventually(t, "not tracked once more", func() bool {
		if err := bed.Lab.Node().FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		d = bed.Start(nil, flag, pods)
		defer d.End(syscall.SIGTERM)
		bed.AwaitSync()
		return testbed.Within(2*time.Second, untrackedMetric(bed, "1")) // it looks for tracked connections first
	})
	if code := bed.Start(nil, "--cleanup").Wait(); code != 0 {
		t.Errorf("--cleanup: exit %d", code)
	}
	if diff := cmp.Diff(before, bed.Ruleset()); diff != "" {
		t.Errorf("the host is not as it was (-before +after):\n%s", diff)
	}
	bed.WantAlive(open, "after the clean-up")
}

// untrackedMetric reports whether the daemon's metric has a value.
func untrackedMetric(bed *testbed.Testbed, value string) func() bool {
	return func() bool {
		_, body, err := bed.Get("http://127.0.0.1:10249/metrics")
		return err == nil && strings.Contains(body, "\nkubeproxy_ebpf_untracked "+value+"\n")
	}
}

// dialEcho connects a pod to the Service.
func dialEcho(bed *testbed.Testbed) net.Conn {
	bed.T.Helper()
	c, err := bed.Client.Dial(bed.T.Context(), proxy.TCP, netip.Addr{}, testbed.ClusterIP)
	if err != nil {
		bed.T.Fatal(err)
	}
	bed.T.Cleanup(func() { _ = c.Close() })
	return c
}

// trackedConnections counts the connections to the endpoint that the node tracks.
func trackedConnections(bed *testbed.Testbed) (n int) {
	bed.T.Helper()
	if err := bed.Lab.Node().Do(func() error {
		c, err := ct.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		flows, err := c.Dump(bed.T.Context(), ct.Filter{Protocol: unix.IPPROTO_TCP}, func(f *ct.Flow) bool { return f.Reply.Src.Addr() == testbed.PodA })
		n = len(flows)
		return err
	}); err != nil {
		bed.T.Fatal(err)
	}
	return n
}
