package nftables

import (
	"context"
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
	if err := proxytest.Sync(context.Background(), d, plainState(n)); err != nil {
		t.Fatal(err)
	}
	fake.Reset()
	return d, fake
}

// TestCostOfReplacingOneEndpoint checks that the cost depends on the change, not on the
// number of Services.
func TestCostOfReplacingOneEndpoint(t *testing.T) {
	for _, n := range []int{100, proxytest.Many(30_000)} {
		d, fake := synced(t, n)
		delta := &proxy.Delta{Upserts: []proxy.Upsert{{Old: plainRow(50, 10, 0), New: plainRow(50, 10, 1<<20)}}}
		if err := proxytest.Apply(context.Background(), d, delta); err != nil {
			t.Fatal(err)
		}
		c := fake.Reset()
		if c.Elements() > 4 || c.Others() != 0 || c.Lists != 0 || c.Commits != 1 {
			t.Errorf("%d Services: %d element operations, %d others, %d lists, %d commits; want at most 4, 0, 0, 1",
				n, c.Elements(), c.Others(), c.Lists, c.Commits)
		}
	}
}

// TestCostOfAddingAService checks that the number of operations does not depend on the
// number of Services.
func TestCostOfAddingAService(t *testing.T) {
	var first int
	for _, n := range []int{100, proxytest.Many(30_000)} {
		d, fake := synced(t, n)
		if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(n, 10, 0)}}}); err != nil {
			t.Fatal(err)
		}
		c := fake.Reset()
		if c.Elements() != 12 || c.Others() != 0 || c.Lists != 0 {
			t.Errorf("%d Services: %d element operations, %d others, %d lists; want 12, 0, 0", n, c.Elements(), c.Others(), c.Lists)
		}
		if first == 0 {
			first = c.Elements()
		}
		if c.Elements() != first {
			t.Errorf("%d Services: %d element operations, %d at the smaller size", n, c.Elements(), first)
		}
	}
}

// TestCostOfRemovingAnEndpoint fills the gap with the endpoint of the last slot.
func TestCostOfRemovingAnEndpoint(t *testing.T) {
	d, fake := synced(t, 1000)
	old := plainRow(50, 10, 0)
	cur := plainRow(50, 9, 0)
	cur.Cluster[3] = old.Cluster[9]
	if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); c.Elements() != 6 || c.Lists != 0 {
		t.Errorf("%d element operations, %d lists; want 6 (a slot moved, one freed, the count changed, a class is new) and 0", c.Elements(), c.Lists)
	}
}

// TestCostOfAffinity replaces an endpoint on this node of a Service with session affinity,
// which is in both lists. Whatever the number of Services, each list of each frontend takes
// two operations for its id and two for the endpoint.
func TestCostOfAffinity(t *testing.T) {
	row := func(shift int) *proxy.ServicePort {
		sp := stickyRow(shift, 1)
		sp.Cluster = append(sp.Cluster, stickyRow(1<<20, 9).Cluster...)
		sp.Local, sp.External = sp.Cluster[:2], proxy.ScopeLocal
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: addrPort(0, 0, 30080)})
		return sp
	}
	for _, n := range []int{100, proxytest.Many(30_000)} {
		d, fake := synced(t, n)
		for _, u := range []proxy.Upsert{{Old: plainRow(0, 10, 0), New: row(0)}, {Old: row(0), New: row(50)}} {
			fake.Reset()
			if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Upserts: []proxy.Upsert{u}}); err != nil {
				t.Fatal(err)
			}
		}
		if c := fake.Reset(); c.Elements() != 3*4 || c.Others() != 0 || c.Lists != 0 || c.Commits != 1 {
			t.Errorf("%d Services: %d element operations, %d others, %d lists, %d commits; want 12, 0, 0, 1",
				n, c.Elements(), c.Others(), c.Lists, c.Commits)
		}
	}
}

// TestCostOfUnchangedSync checks that a Sync writes nothing if nothing differs.
func TestCostOfUnchangedSync(t *testing.T) {
	d, fake := synced(t, 1000)
	if err := proxytest.Sync(context.Background(), d, plainState(1000)); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); len(c.Ops) != 0 {
		t.Errorf("Sync without a difference made %v", c.Ops)
	}
}

// TestCostOfNodeChange checks that a change of the node rewrites only constant chains.
func TestCostOfNodeChange(t *testing.T) {
	d, fake := synced(t, 1000)
	node := testNode()
	node.MasqueradeAll = true
	if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Node: node}); err != nil {
		t.Fatal(err)
	}
	if c := fake.Reset(); c.Elements() != 0 || c.Others() > 10 || c.Others() == 0 {
		t.Errorf("masqueradeAll made %v", c.Ops)
	}
}

// TestCostOfDrainingEndpoints checks that endpoints which matter only to connection tracking
// cost nothing.
func TestCostOfDrainingEndpoints(t *testing.T) {
	d, fake := synced(t, 100)
	old, cur := plainRow(50, 10, 0), plainRow(50, 10, 0)
	cur.Draining = []netip.AddrPort{addrPort(10<<24, 1<<20, 8080)}
	for _, u := range []proxy.Upsert{{Old: old, New: cur}, {Old: cur, New: old}} {
		if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Upserts: []proxy.Upsert{u}}); err != nil {
			t.Fatal(err)
		}
	}
	if c := fake.Reset(); len(c.Ops) != 0 || c.Lists != 0 || c.Commits != 0 {
		t.Errorf("draining endpoints made %v, %d lists, %d commits", c.Ops, c.Lists, c.Commits)
	}
}
