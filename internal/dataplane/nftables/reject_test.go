package nftables

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/proxy"
)

// TestRejectsAfterRouting wants no packet to come to a reject before it is routed: the
// kernel may take what a packet from a tunnel has instead of a route for one (ADR 27).
func TestRejectsAfterRouting(t *testing.T) {
	all := func(*proxy.ServicePort, proxy.Frontend, proxy.Route) bool { return true }
	for name, over := range map[string]Overlay{
		"alone": Alone, "on a link": {Table: "x", Takes: all, OnLink: true}, "sockets": {Table: "x", Takes: all, Sockets: &Sockets{Mark: 1, Own: 2}},
	} {
		tab := newTable(proxy.IPv4, 14, over)
		tab.resetTCP = true
		chains := map[string]*chain{}
		for _, c := range tab.constantChains(testNode(), nil, localnet.Guard{InForce: true}) {
			chains[c.Name] = c
		}
		rejecting := map[string]bool{}
		for _, c := range chains {
			if c.Hook != nil && rejects(chains, c) {
				rejecting[c.Name] = true
				if c.Hook.Number == unix.NF_INET_PRE_ROUTING {
					t.Errorf("%s: packets come from %s to a reject", name, c.Name)
				}
			}
		}
		if len(rejecting) < 3 {
			t.Errorf("%s: only %v come to a reject", name, rejecting)
		}
	}
}

// rejects reports whether a chain, or one that it leads to, rejects packets. Maps lead to
// chains that choose endpoints, or drop.
func rejects(chains map[string]*chain, c *chain) bool {
	for _, r := range c.rules {
		for _, x := range r.Exprs {
			switch x := x.(type) {
			case *expr.Reject:
				return true
			case *expr.Verdict:
				if to := chains[x.Chain]; to != nil && rejects(chains, to) {
					return true
				}
			}
		}
	}
	return false
}
