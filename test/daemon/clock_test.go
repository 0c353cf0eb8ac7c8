package daemon

import (
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/internal/statusapi"
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
			s := newSiteFor(t, mode)
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("sticky.yaml", stuck("sessionAffinity: ClientIP,", "TCP", podA.String(), podB.String()))
			d := s.start(nil)
			s.await()
			open := s.openEcho()
			stays := s.stays(netip.MustParseAddrPort(stuckIP + ":80"))
			load := s.load(2, clusterIP)
			var repairs []time.Duration
			jumps := []time.Duration{5 * time.Hour, -10 * time.Hour, 5 * time.Hour}
			for i, jump := range jumps {
				next := s.start(nil)
				d.end(syscall.SIGTERM)
				d = next
				s.await()
				setClock(t, jump)
				stays()
				began := time.Now()
				to := []netip.Addr{podB, podA}[i%2]
				s.write("web.yaml", service("web", clusterIP, to))
				eventually(t, "a change", s.answers(clusterIP, to))
				repairs = append(repairs, time.Since(began))
				s.tellsTime()
			}
			made, failed := load()
			s.report(failed)
			s.alive(open, "afterwards")
			reliability.Record(t, reliability.Result{
				Fault: "clock set forward or back by hours", Mode: mode, Tried: len(jumps), Requests: made, Failed: len(failed), Repairs: repairs,
				Note: "a repair is a change of endpoints that comes right after",
			})
		})
	}
}

// setClock changes the clock of this machine, which is a virtual one.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	if err := unix.Settimeofday(&now); err != nil {
		t.Fatal(err)
	}
}

// stays returns what checks that the client has the endpoint that it has now.
func (s *site) stays(with netip.AddrPort) func() {
	first, fate := s.ask(client, with)
	if fate != traffic.Answered {
		s.t.Fatalf("the client is not served: %v", fate)
	}
	return func() {
		s.t.Helper()
		for range 10 {
			if by, fate := s.ask(client, with); by != first {
				s.t.Fatalf("the client came to %v (%v), not to %v", by, fate, first)
			}
		}
	}
}

// tellsTime wants a daemon that is healthy and says for how long it has been running.
func (s *site) tellsTime() {
	s.t.Helper()
	var n statusapi.Node
	if err := statusapi.AtSocket(s.socket).Get(s.t.Context(), statusapi.NodePath, nil, &n); err != nil {
		s.t.Fatal(err)
	}
	if n.Sync.Last == nil || !n.Health.Healthy {
		s.t.Fatalf("its health: %+v, its syncs: %+v", n.Health, n.Sync)
	}
	for what, ago := range map[string]time.Duration{"start": n.Now.Sub(n.Started), "last sync": n.Now.Sub(*n.Sync.Last)} {
		if ago < 0 || ago > time.Hour {
			s.t.Errorf("its %s was %v ago", what, ago)
		}
	}
}
