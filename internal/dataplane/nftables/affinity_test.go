package nftables

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// stickyRow returns Service 0 with session affinity and n endpoints, numbered from first.
func stickyRow(first, n int) *proxy.ServicePort {
	sp := plainRow(0, 0, 0)
	for i := range n {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: addrPort(10<<24, first+i, 8080)})
	}
	sp.Affinity, sp.UsableSomewhere = time.Hour, true
	return sp
}

func stickyState(sp *proxy.ServicePort) *proxy.State {
	s := plainState(0)
	s.Rows[sp.Key] = sp
	return s
}

// wantIDs fails the test unless a table has ids for exactly the endpoints of a row, or for
// none if the row is nil.
func wantIDs(t *testing.T, d *Dataplane, sp *proxy.ServicePort) {
	t.Helper()
	blocks := d.tables[0].blocks
	if sp == nil {
		if len(blocks.byRow) != 0 || len(blocks.taken) != 0 {
			t.Errorf("%d blocks are left, %d taken; want none", len(blocks.byRow), len(blocks.taken))
		}
		return
	}
	b := blocks.byRow[sp.Key]
	if b == nil || len(blocks.byRow) != 1 {
		t.Fatalf("there are %d blocks; want that of %v", len(blocks.byRow), sp.Key)
	}
	if want := countEndpoints(sp); len(b.positions) != want || len(b.used) != want {
		t.Errorf("%d offsets are assigned and %d used; want %d", len(b.positions), len(b.used), want)
	}
}

// TestReplaceAllEndpoints replaces all endpoints of the longest possible list and of a short
// one, by Apply and while no daemon runs.
func TestReplaceAllEndpoints(t *testing.T) {
	for _, n := range []int{1, maxEndpoints} {
		fake := nfttest.NewFake()
		d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
		a, b, c := stickyRow(0, n), stickyRow(n, n), stickyRow(2*n, n)
		proxytest.MustSync(t, d, stickyState(a))
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}})
		wantIDs(t, d, b)
		d = Alone.New(fake, mode.Settings{MasqueradeBit: 14})
		proxytest.MustSync(t, d, stickyState(c))
		wantIDs(t, d, c)
	}
}

// TestRefusedRowsKeepNoIDs checks that refused rows use up no ids: the kernel refuses a row
// more often than there are ids, with other endpoints each time.
func TestRefusedRowsKeepNoIDs(t *testing.T) {
	ctx := context.Background()
	for name, old := range map[string]*proxy.ServicePort{"changed": stickyRow(0, 10), "new": nil} {
		t.Run(name, func(t *testing.T) {
			f := &faulty{nfttest.NewFake(), func(*nft.Op) error { return nil }}
			d := Alone.New(f, mode.Settings{MasqueradeBit: 14})
			s := plainState(0)
			if old != nil {
				s = stickyState(old)
			}
			proxytest.MustSync(t, d, s)
			f.fails = func(op *nft.Op) error {
				if op.Kind == nft.AddElement && op.Set == d.tables[0].addresses.ids {
					return unix.ENOMEM
				}
				return nil
			}
			for i := range halfBlock / 10 {
				err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: stickyRow(10*i+10, 10)}}})
				if refused := (*proxytest.RefusedError)(nil); !errors.As(err, &refused) {
					t.Fatalf("Apply gave %v; want the row refused", err)
				}
			}
			wantIDs(t, d, old)
		})
	}
}

// TestListsShareIDs checks that an endpoint keeps its id while one of the lists has it, also
// over a restart, and that the id is released when none has it.
func TestListsShareIDs(t *testing.T) {
	fake := nfttest.NewFake()
	d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
	row := func(cluster, local []proxy.Endpoint) *proxy.ServicePort {
		sp := stickyRow(0, 0)
		sp.Cluster, sp.Local, sp.External = cluster, local, proxy.ScopeLocal
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: addrPort(0, 0, 30080)})
		return sp
	}
	all := stickyRow(0, 6).Cluster
	places := func() map[netip.AddrPort]uint32 {
		out := map[netip.AddrPort]uint32{}
		for a, p := range d.tables[0].blocks.byRow[row(nil, nil).Key].positions {
			out[a] = p.offset
		}
		return out
	}
	last := row(all, nil)
	proxytest.MustSync(t, d, stickyState(last))
	first := places()
	for i, next := range []*proxy.ServicePort{
		row(all, all[3:5]), row(all[:4], all[3:5]), row(all[:2], all[2:5]), row(all[1:5], all[2:]),
	} {
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: next}}})
		for range 2 {
			got := places()
			if len(got) != len(d.tables[0].blocks.byRow[next.Key].used) {
				t.Errorf("step %d: %d of %d offsets are used", i, len(got), len(d.tables[0].blocks.byRow[next.Key].used))
			}
			have := map[netip.AddrPort]bool{}
			for _, e := range slices.Concat(next.Cluster, next.Local) {
				if have[e.Addr] = true; got[e.Addr] != first[e.Addr] && e.Addr != all[5].Addr { // which was away
					t.Errorf("step %d: %v had offset %d and has %d", i, e.Addr, first[e.Addr], got[e.Addr])
				}
			}
			if len(got) != len(have) {
				t.Errorf("step %d: %d endpoints have %d offsets", i, len(have), len(got))
			}
			d = Alone.New(fake, mode.Settings{MasqueradeBit: 14}) // a restart
			proxytest.MustSync(t, d, stickyState(next))
		}
		last = next
	}
}

// TestBlockIsNotReusedSoon replaces a row by another one after restarts. The new row must
// get other ids, because clients of the old one may still be remembered.
func TestBlockIsNotReusedSoon(t *testing.T) {
	fake := nfttest.NewFake()
	bases := map[uint32]bool{}
	for i := range 4 { // one of 49,152 may come twice
		sp := stickyRow(0, 3)
		sp.Key = serviceKey(i, proxy.IPv4)
		d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
		proxytest.MustSync(t, d, stickyState(sp))
		bases[d.tables[0].blocks.byRow[sp.Key].base] = true
		proxytest.MustApply(t, d, &proxy.Delta{Removes: []*proxy.ServicePort{sp}})
	}
	if len(bases) < 3 {
		t.Errorf("four rows, one after the other, had %d blocks of ids", len(bases))
	}
}

// TestForeignAffinityIsForgotten changes remembered clients and the elements they refer to
// from outside. Clients of the Service with wrong entries are still served, and clients of
// other Services are not affected.
func TestForeignAffinityIsForgotten(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	podsOnLoopback(t)
	d, _ := openKernel(t)
	s := plainState(0)
	var rows []*proxy.ServicePort
	for i := range 3 {
		sp := plainRow(i, 5, 0)
		sp.Key.Protocol, sp.Affinity = proxy.UDP, time.Hour
		s.Rows[sp.Key], rows = sp, append(rows, sp)
	}
	proxytest.MustSync(t, d, s)
	tab := d.tables[0]
	list := func(sp *proxy.ServicePort) uint32 { return tab.blocks.byRow[sp.Key].base }
	slices.SortFunc(rows, func(a, b *proxy.ServicePort) int { return cmp.Compare(list(a), list(b)) })
	first, mine := rows[0], rows[1]
	client := string(clients.Addr().AsSlice())
	remembered := func() map[string]uint32 {
		out := map[string]uint32{}
		if err := d.conn.Elements(ctx, tab.affinity, func(e nft.Element) { out[e.Key], _ = parseHostWord(e.Data) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	commit := func(edit func(b *nft.Batch)) {
		var b nft.Batch
		edit(&b)
		nfttest.Commit(t, d.conn, &b)
	}

	key := client + string(hostWord(list(mine)))
	theirs := tab.blocks.byRow[rows[2].Key].id(proxy.ScopeCluster, rows[2].Cluster[0].Addr)
	for _, wrong := range []uint32{theirs, list(mine) + halfBlock - 1, scratchBit + 1<<20 + 7, 7} {
		commit(func(b *nft.Batch) { b.AddElement(tab.affinity, nft.Element{Key: key, Data: string(hostWord(wrong))}) })
		if refused := sendFlows(t, mine.Frontends[0].Addr, 1); refused > 0 {
			t.Errorf("a client that is remembered for %x is refused", wrong)
		}
		if got := remembered()[key]; got <= list(mine) || got > list(mine)+5 {
			t.Errorf("a client that was remembered for %x is remembered for %x, which is not of list %x", wrong, got, list(mine))
		}
		commit(func(b *nft.Batch) { b.DeleteElement(tab.affinity, nft.Element{Key: key}) })
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			t.Fatal(err)
		}
	}

	commit(func(b *nft.Batch) {
		b.DeleteElement(tab.addresses.lists, nft.Element{Key: tab.addresses.key(proxy.UDP, mine.Frontends[0].Addr)})
	})
	before := remembered()
	sendFlows(t, mine.Frontends[0].Addr, 100)
	for k := range remembered() {
		if _, ok := before[k]; !ok && k[4:] != string(hostWord(list(mine))) {
			t.Errorf("a client of a Service without a list is remembered for another: %x (list %x is another Service's)", k, list(first))
			break
		}
	}
}
