package nftables

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/proxy"
)

// TestRejectsAfterRouting checks that no packet reaches a reject before it is routed: the
// kernel may mistake the tunnel metadata of a packet for its route (ADR 27).
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
					t.Errorf("%s: packets reach a reject from %s", name, c.Name)
				}
			}
		}
		if len(rejecting) < 3 {
			t.Errorf("%s: packets reach a reject only from %v", name, rejecting)
		}
	}
}

// rejects reports whether a chain, or one that it jumps to, rejects packets. Chains in maps
// choose endpoints or drop packets.
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
