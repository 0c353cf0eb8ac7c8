package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

const (
	// enough requests are sent that with three endpoints to choose from the
	// chance to miss one is below one in a million.
	enough = 36
	// patience is how long no answer is not yet silence.
	patience = 300 * time.Millisecond
	// deadline is how long the cluster may take to become as it should be. An
	// informer whose API server answers with errors waits for up to a minute
	// before it tries again.
	deadline = 60 * time.Second
)

// probe is an expectation: who answers when someone asks.
type probe struct {
	from place
	to   netip.AddrPort
	want string // names of pods and other fates, sorted
}

// clusterIPs are the addresses of a Service inside the cluster.
func clusterIPs(svc *v1.Service) []netip.AddrPort {
	var out []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(ip), servicePort))
	}
	return out
}

// ask sends requests by one protocol and returns what became of them.
func (s *scene) ask(p proxy.Protocol, from place, to netip.AddrPort, n int) []traffic.Seen {
	s.Helper()
	flow := traffic.Flow{Protocol: p, Src: from.addrs[proxy.FamilyOf(to.Addr())], Dst: to, Patience: patience, Socket: traffic.Socket{Unbound: from.free}}
	seen, err := from.host.Probe(context.Background(), slices.Repeat([]traffic.Flow{flow}, n))
	if err != nil {
		s.Fatalf("ask %v from %s: %v", to, from.name, err)
	}
	return seen
}

// who returns the fates of requests, each once, sorted: the names of the pods
// that answered, and words for all else.
func (s *scene) who(seen []traffic.Seen) string {
	var out []string
	for _, one := range seen {
		word := one.Fate.String()
		if one.Fate == traffic.Answered {
			word = s.names[one.By.Addr()]
		}
		out = append(out, word)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// clientsSeen returns the addresses that the pods saw, each once, sorted.
func clientsSeen(seen []traffic.Seen) string {
	var out []string
	for _, one := range seen {
		out = append(out, one.Client.String())
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// expect waits until every probe finds what it wants, with TCP and with UDP.
func (s *scene) expect(probes ...probe) {
	s.Helper()
	for _, p := range probes {
		s.expectBy(proxy.TCP, p)
		s.expectBy(proxy.UDP, p)
	}
}

// expectBy is expect for one protocol.
func (s *scene) expectBy(protocol proxy.Protocol, p probe) {
	s.Helper()
	what := fmt.Sprintf("%v %v from %s", protocol, p.to, p.from.name)
	s.await(what, p.want, func() string { return s.who(s.ask(protocol, p.from, p.to, enough)) })
}

// expectEverywhere expects the same from a pod of each node.
func (s *scene) expectEverywhere(want string, to ...netip.AddrPort) {
	s.Helper()
	for _, from := range s.clients {
		for _, a := range to {
			s.expect(probe{from, a, want})
		}
	}
}

// await asks until the answer is the wanted one, and ends the test if it never
// is.
func (s *scene) await(what, want string, ask func() string) {
	s.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for started := time.Now(); ; <-tick.C {
		got := ask()
		if got == want {
			return
		}
		if limit := traffic.Scaled(deadline); time.Since(started) > limit {
			s.Fatalf("%s: got %q, want %q, after %v", what, got, want, limit)
		}
	}
}
