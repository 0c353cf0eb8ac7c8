package nftables

import (
	"net/netip"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// synced returns a dataplane on a Fake that holds n Services with ten endpoints each.
func synced(t *testing.T, n int) (*Dataplane, *nfttest.Fake) {
	t.Helper()
	fake := nfttest.NewFake()
	d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
	proxytest.MustSync(t, d, plainState(n))
	fake.Reset()
	return d, fake
}

// TestCosts checks that the cost of a change depends on the change, not on the number of Services,
// that it lists nothing, and that a Sync writes nothing if nothing differs.
func TestCosts(t *testing.T) {
	// The endpoint of the last slot fills the gap: a slot moves, one is freed, the count changes, and
	// the class is new.
	less := plainRow(51, 9, 0)
	less.Cluster[3] = plainRow(51, 10, 0).Cluster[9]
	// An endpoint on this node is in both lists. Each list of each frontend takes two operations for
	// its id and two for the endpoint.
	sticky := func(shift int) *proxy.ServicePort {
		sp := stickyRow(shift, 1)
		sp.Cluster = append(sp.Cluster, stickyRow(1<<20, 9).Cluster...)
		sp.Local, sp.External = sp.Cluster[:2], proxy.ScopeLocal
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: addrPort(0, 0, 30080)})
		return sp
	}
	plain, draining, node := plainRow(52, 10, 0), plainRow(52, 10, 0), testNode() // conntrack alone minds who drains
	draining.Draining, node.MasqueradeAll = []netip.AddrPort{addrPort(10<<24, 1<<20, 8080)}, true
	to := func(old, cur *proxy.ServicePort) *proxy.Delta {
		return &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}
	}
	for _, n := range []int{100, proxytest.Many(30_000)} {
		d, fake := synced(t, n)
		proxytest.MustSync(t, d, plainState(n))
		if c := fake.Reset(); len(c.Ops) != 0 {
			t.Errorf("%d Services: a Sync without a difference made %v", n, c.Ops)
		}
		for _, tt := range []struct {
			name                   string
			step                   *proxy.Delta
			elements, few, commits int
			many                   int // operations on chains and rules, a few at least
		}{
			{"an endpoint is replaced", to(plainRow(50, 10, 0), plainRow(50, 10, 1<<20)), 2, 0, 1, 0},
			{"a Service comes", to(nil, plainRow(n, 10, 0)), 12, 0, 1, 0},
			{"an endpoint goes", to(plainRow(51, 10, 0), less), 6, 1, 1, 10},
			{"a Service gets affinity", to(plainRow(0, 10, 0), sticky(0)), 64, 1, 1, 40},
			{"an endpoint with affinity is replaced", to(sticky(0), sticky(50)), 3 * 4, 0, 1, 0},
			{"an endpoint drains", to(plain, draining), 0, 0, 0, 0},
			{"an endpoint drains no more", to(draining, plain), 0, 0, 0, 0},
			{"masqueradeAll, in constant chains", &proxy.Delta{Node: node}, 0, 1, 1, 10},
		} {
			proxytest.MustApply(t, d, tt.step)
			c := fake.Reset()
			if c.Elements() != tt.elements || c.Others() < tt.few || c.Others() > tt.many || c.Lists != 0 || c.Commits != tt.commits {
				t.Errorf("%d Services, %s: %d element operations, %d others, %d lists, %d commits; want %d, %d to %d, 0, %d",
					n, tt.name, c.Elements(), c.Others(), c.Lists, c.Commits, tt.elements, tt.few, tt.many, tt.commits)
			}
		}
	}
}
