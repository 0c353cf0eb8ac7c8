package faults

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
	"sluice/test/vm/guest"
)

// TestClockJumps sets the clock of a virtual machine forward and back by hours, as a
// machine without a battery or with a wrong time server does. Clients stay with their
// endpoint, by session affinity of three hours, also after a daemon has handed them to the next; changes
// come through, the daemon is healthy and knows how long it has been running.
func TestClockJumps(t *testing.T) {
	if os.Getenv(guest.DaemonVariable) == "" {
		t.Skip("no clock is set but a virtual machine's: test/kernels plays this there")
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("sticky.yaml", strings.Replace(testbed.Service("sticky", stickyIP, testbed.PodA, testbed.PodB), "spec:\n", "spec:\n  sessionAffinity: ClientIP\n", 1))
			d := bed.Start(nil)
			bed.AwaitSync()
			open := bed.OpenEcho()
			stays := keepsEndpoint(bed, stickyIP)
			load := bed.Load(2, testbed.ClusterIP)
			var repairs []time.Duration
			jumps := []time.Duration{5 * time.Hour, -10 * time.Hour, 5 * time.Hour}
			for i, jump := range jumps {
				next := bed.Start(nil)
				d.End(syscall.SIGTERM)
				d = next
				bed.AwaitSync()
				setClock(t, jump)
				stays()
				began := time.Now()
				to := []netip.Addr{testbed.PodB, testbed.PodA}[i%2]
				bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, to))
				testbed.Eventually(t, "a change", bed.Answers(testbed.ClusterIP, to))
				repairs = append(repairs, time.Since(began))
				tellsTime(bed)
			}
			made, failed := load()
			bed.Report(failed)
			bed.WantAlive(open, "afterwards")
			reliability.Record(t, reliability.Result{
				Fault: "clock set forward or back by hours", Mode: mode, Tried: len(jumps), Requests: made, Failed: len(failed), Repairs: repairs,
				Note: "a repair is a change of endpoints that comes right after",
			})
		})
	}
}

// stickyIP is the address of a Service with session affinity.
var stickyIP = netip.MustParseAddrPort("172.30.0.30:80")

// setClock changes the clock of this machine, which is a virtual one.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	if err := unix.Settimeofday(&now); err != nil {
		t.Fatal(err)
	}
}

// keepsEndpoint returns what checks that the client has the endpoint that it has now.
func keepsEndpoint(bed *testbed.Testbed, with netip.AddrPort) func() {
	first, fate := bed.Ask(testbed.ClientIP, with)
	if fate != traffic.Answered {
		bed.T.Fatalf("the client is not served: %v", fate)
	}
	return func() {
		bed.T.Helper()
		for range 10 {
			if by, fate := bed.Ask(testbed.ClientIP, with); by != first {
				bed.T.Fatalf("the client came to %v (%v), not to %v", by, fate, first)
			}
		}
	}
}

// tellsTime wants a daemon that is healthy and says for how long it has been running.
func tellsTime(bed *testbed.Testbed) {
	bed.T.Helper()
	n := nodeStatus(bed)
	if n.Sync.Last == nil || !n.Health.Healthy {
		bed.T.Fatalf("its health: %+v, its syncs: %+v", n.Health, n.Sync)
	}
	for what, ago := range map[string]time.Duration{"start": n.Now.Sub(n.Started), "last sync": n.Now.Sub(*n.Sync.Last)} {
		if ago < 0 || ago > time.Hour {
			bed.T.Errorf("its %s was %v ago", what, ago)
		}
	}
}
