package faults

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/test/daemon/testbed"
)

// TestTwoDaemons starts a second daemon while one runs, as by mistake or in a rollout. The second
// writes nothing, and each reports the other. When the first ends in any way, the second takes
// over. No connection fails.
func TestTwoDaemons(t *testing.T) {
	for _, c := range []struct {
		first, second string
		end           syscall.Signal
	}{
		{"nftables", "nftables", syscall.SIGTERM},
		{"nftables", "iptables", syscall.SIGKILL},
		{"iptables", "iptables", syscall.SIGKILL},
		{"iptables", "nftables", syscall.SIGTERM},
		{"userspace", "userspace", syscall.SIGTERM},
		{"userspace", "nftables", syscall.SIGTERM},
		{"ebpf", "ebpf", syscall.SIGTERM},
		{"ipvs", "ipvs", syscall.SIGTERM},
		{"ipvs", "nftables", syscall.SIGKILL},
	} {
		t.Run(fmt.Sprintf("%s then %s after %v", c.first, c.second, c.end), func(t *testing.T) {
			bed := testbed.NewFor(t, c.first)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			first := bed.Start(nil)
			bed.AwaitSync()
			open := bed.OpenEcho()
			written := countWrites(bed)
			alone := costOf(bed, written, testbed.PodB, testbed.PodA)
			if alone == 0 && c.first != "userspace" { // whose rules do not name endpoints
				t.Fatal("writes are not counted")
			}

			load := bed.Load(2, testbed.ClusterIP)
			second := bed.Start(nil, "--proxy-mode", c.second)
			testbed.Eventually(t, "word of each other", func() bool {
				return strings.Contains(second.Log(), fmt.Sprintf("serves this node, waiting until it ends; if this one shall not replace it, stop one of them\" pid=%d", first.Cmd.Process.Pid)) &&
					strings.Contains(first.Log(), fmt.Sprintf("waits until this one ends\" pid=%d", second.Cmd.Process.Pid))
			})
			if !strings.Contains(second.Log(), "mode "+c.first) {
				t.Error("the second does not say what the first is")
			}
			testbed.Pause(t, 500*time.Millisecond) // for the second to write, if it would
			if n := len(written.taken()); n != 0 {
				t.Errorf("%d objects were written because of the second", n)
			}
			if n := costOf(bed, written, testbed.PodB, testbed.PodA); n != alone {
				t.Errorf("%d objects were written for a change beside a second daemon, %d without", n, alone)
			}
			ended := time.Now()
			_ = first.Cmd.Process.Signal(c.end)
			second.AwaitFirstSync()
			took := second.Synced().Sub(ended)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			testbed.Eventually(t, "a change after that", bed.Answers(testbed.ClusterIP, testbed.PodB))
			bed.WantAlive(open, "after the first was told to end")
			if c.first != c.second {
				_ = open.Close() // mode userspace carries it until then
			}
			if code := first.Wait(); c.end == syscall.SIGTERM && code != 0 {
				t.Errorf("the first ended with %d", code)
			}
			made, failed := load()
			bed.Report(failed)
			bed.AwaitFreshRules(c.second)
			reliability.Record(t, reliability.Result{
				Fault: "two daemons on one node: " + c.first + ", then " + c.second, Mode: c.second, Tried: 1,
				Requests: made, Failed: len(failed), Repairs: []time.Duration{took}, Note: "the repair is what the second took after " + c.end.String() + " of the first",
			})
		})
	}
}

// costOf replaces the Service's endpoint and returns how many objects were written.
func costOf(bed *testbed.Testbed, w *writes, endpoints ...netip.Addr) int {
	bed.T.Helper()
	w.taken()
	for _, e := range endpoints {
		bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, e))
		testbed.Eventually(bed.T, "the change", bed.Answers(testbed.ClusterIP, e))
	}
	bed.AwaitSync()
	return len(w.taken())
}
