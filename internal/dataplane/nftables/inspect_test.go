package nftables

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// openWithReader opens a dataplane as the daemon does, and another connection for changes
// from outside.
func openWithReader(t *testing.T) (*Dataplane, *nft.Conn) {
	t.Helper()
	lab.Namespace(t)
	d, err := Alone.Open(t.Context(), mode.Settings{MasqueradeBit: 14})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, nfttest.Open(t)
}

// TestInspectAgrees checks that Inspect finds no difference in random rows, written by Sync or
// Apply.
func TestInspectAgrees(t *testing.T) {
	d, _ := openWithReader(t)
	r := rand.New(rand.NewPCG(1, 2))
	s := proxy.NewState()
	s.Node = testNode()
	for i := range 60 {
		sp := randomRow(r, i)
		s.Rows[sp.Key] = sp
	}
	proxytest.MustSync(t, d, s)
	changed := &proxy.Changed{}
	for i := range 20 {
		sp := randomRow(r, i)
		s.Rows[sp.Key] = sp
		changed.Rows = append(changed.Rows, sp.Key)
	}
	slices.SortFunc(changed.Rows, proxy.ComparePortKeys)
	if refused, err := d.Apply(t.Context(), s, changed); err != nil || len(refused) > 0 {
		t.Fatalf("refused %v, error %v", refused, err)
	}
	proxytest.MustSync(t, d, s) // takes away what no row wants any more
	for key, sp := range s.Rows {
		got, err := d.Inspect(t.Context(), proxy.Inspection{Row: key})
		if err != nil || len(got.Differences) > 0 || got.Objects < 20+len(sp.Frontends) {
			t.Errorf("%v: %+v, error %v", sp, got, err)
		}
	}
	// Inspect has changed nothing: another Sync has nothing to write.
	c := &counter{Interface: d.conn}
	d.conn = c
	proxytest.MustSync(t, d, s)
	if n := c.reset(); n != 0 {
		t.Errorf("a Sync after all inspections wrote %d operations", n)
	}
}

// TestInspectDiffers checks that Inspect reports exactly the objects that another process
// deleted or changed.
func TestInspectDiffers(t *testing.T) {
	d, other := openWithReader(t)
	s := plainState(3)
	sp := plainRow(1, 10, 0)
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: netip.MustParseAddrPort("192.0.2.1:80")},
		proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")})
	sp.AllowFrom = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	s.Rows[sp.Key] = sp
	proxytest.MustSync(t, d, s)
	commit := func(change func(*nft.Batch)) {
		t.Helper()
		var b nft.Batch
		change(&b)
		nfttest.Commit(t, other, &b)
	}
	inspect := func() proxy.Inspected {
		t.Helper()
		got, err := d.Inspect(t.Context(), proxy.Inspection{Row: sp.Key})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	elements := 0
	_, err := d.differ.Objects(sp.Key, func(x id, v value) {
		if x.kind != kindElement || x.set == x.t.clusterIPs {
			return // rules refer to chains, and other elements of clusterIPs do
		}
		elements++
		e := x.element(v)
		commit(func(b *nft.Batch) { b.DeleteElement(x.set, e) })
		if got := inspect(); len(got.Differences) != 1 || got.Differences[0].Have != "" || got.Differences[0].Object != "element of "+x.set.Name {
			t.Errorf("without %s %x: %+v", x.set.Name, e, got.Differences)
		}
		commit(func(b *nft.Batch) { b.AddElement(x.set, e) })
	})
	if err != nil || elements < 10 {
		t.Fatalf("%d elements, error %v", elements, err)
	}
	if got := inspect(); len(got.Differences) != 0 {
		t.Fatalf("as it was: %+v", got.Differences)
	}
	table := d.tables[0]
	at := table.addresses
	slot := nft.Element{Key: at.key(proxy.TCP, sp.Frontends[0].Addr) + string(hostWord(slots)), Data: endpointData(sp.Cluster[0].Addr)}
	wrong := slot
	wrong.Data = endpointData(netip.MustParseAddrPort("10.9.9.9:9"))
	commit(func(b *nft.Batch) { b.DeleteElement(at.endpoints, slot); b.AddElement(at.endpoints, wrong) })
	if got := inspect(); len(got.Differences) != 1 || !strings.Contains(got.Differences[0].Have, "10.9.9.9 . 9") || !strings.Contains(got.Differences[0].Want, "10.0.0.16 . 8080") {
		t.Errorf("with another endpoint: %+v", got.Differences)
	}
	commit(func(b *nft.Batch) { b.FlushChain(table.Table, services) })
	if got := inspect(); len(got.Differences) != 2 || got.Differences[0].Object != "chain services" || got.Differences[0].Have != "" ||
		!strings.HasPrefix(got.Differences[0].Want, "add rule ip sluice services ") {
		t.Errorf("with an empty chain: %+v", got.Differences)
	}
	if got, err := d.Inspect(t.Context(), proxy.Inspection{Row: serviceKey(2, proxy.IPv4)}); err != nil || len(got.Differences) != 1 {
		t.Errorf("a row beside it: %+v, error %v", got.Differences, err)
	}
}

// TestInspectRemembered checks that Inspect reports the endpoint of a client, also if it was
// remembered for the other list.
func TestInspectRemembered(t *testing.T) {
	d, other := openWithReader(t)
	s := plainState(1)
	sp := plainRow(0, 3, 0)
	sp.Affinity, sp.Local, sp.External = time.Hour, sp.Cluster[1:2], proxy.ScopeLocal
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: addrPort(0, 0, 30080)})
	s.Rows[sp.Key] = sp
	proxytest.MustSync(t, d, s)
	client := netip.MustParseAddr("203.0.113.9")
	want := func(cluster, local netip.AddrPort) {
		t.Helper()
		for scope, want := range map[proxy.Scope]netip.AddrPort{proxy.ScopeCluster: cluster, proxy.ScopeLocal: local} {
			got, err := d.Inspect(t.Context(), proxy.Inspection{Row: sp.Key, Client: client, List: scope})
			if err != nil || got.RememberedUnknown != "" {
				t.Fatalf("%+v, error %v", got, err)
			}
			if got.Remembered != want {
				t.Errorf("%v list: remembered with %v, want %v", scope, got.Remembered, want)
			}
		}
	}
	none := netip.AddrPort{}
	want(none, none)
	block := d.tables[0].blocks.byRow[sp.Key]
	come := func(scope proxy.Scope, i int) {
		t.Helper()
		var b nft.Batch
		key := string(client.AsSlice()) + string(hostWord(block.number(scope)))
		b.AddElement(d.tables[0].affinity, nft.Element{Key: key, Data: string(hostWord(block.id(scope, sp.Cluster[i].Addr)))})
		nfttest.Commit(t, other, &b)
	}
	come(proxy.ScopeLocal, 1)
	want(sp.Cluster[1].Addr, sp.Cluster[1].Addr)
	come(proxy.ScopeCluster, 0)
	want(sp.Cluster[0].Addr, sp.Cluster[1].Addr)
	client = client.Next()
	come(proxy.ScopeCluster, 0)
	want(sp.Cluster[0].Addr, none)
}
