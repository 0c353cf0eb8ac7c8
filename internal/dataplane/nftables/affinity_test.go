package nftables

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// stickyRow is Service 0 with session affinity and n endpoints from number first on.
func stickyRow(first, n int) *proxy.ServicePort {
	sp := plainRow(0, 0, 0)
	for i := range n {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: addrPort(10<<24, first+i, 8080)})
	}
	sp.Affinity, sp.Anywhere = time.Hour, true
	return sp
}

func stickyState(sp *proxy.ServicePort) *proxy.State {
	s := plainState(0)
	s.Rows[sp.Key] = sp
	return s
}

// wantIDs fails the test unless a table has ids for a row's endpoints and no
// others, or nothing for no row.
func wantIDs(t *testing.T, d *Dataplane, sp *proxy.ServicePort) {
	t.Helper()
	blocks := d.tables[0].blocks
	if sp == nil {
		if len(blocks.byRow) != 0 || len(blocks.taken) != 0 {
			t.Errorf("%d blocks are left, %d taken; want none", len(blocks.byRow), len(blocks.taken))
		}
		return
	}
	b := blocks.byRow[keyOfBlock(sp)]
	if b == nil || len(blocks.byRow) != 1 {
		t.Fatalf("there are %d blocks; want that of %v", len(blocks.byRow), sp.Key)
	}
	if l := b.lists[proxy.ScopeCluster]; len(l.ids) != len(sp.Cluster) || len(l.used) != len(sp.Cluster) {
		t.Errorf("%d ids are given and %d used; want %d", len(l.ids), len(l.used), len(sp.Cluster))
	}
}

// TestReplaceAllEndpoints replaces all endpoints of the longest lists there are
// in each size of block: by a step, and while nobody was there to see it.
func TestReplaceAllEndpoints(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{smallLists, largeLists} {
		fake := nft.NewFake()
		d := New(fake, Settings{MarkBit: 14})
		a, b, c := stickyRow(0, n), stickyRow(n, n), stickyRow(2*n, n)
		if err := d.Sync(ctx, stickyState(a)); err != nil {
			t.Fatal(err)
		}
		if err := d.Apply(ctx, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}}); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, d, b)
		d = New(fake, Settings{MarkBit: 14})
		if err := d.Sync(ctx, stickyState(c)); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, d, c)
	}
}

// TestRefusedRowsKeepNoIDs has the kernel refuse a row more often than there are
// ids, with other endpoints each time.
func TestRefusedRowsKeepNoIDs(t *testing.T) {
	ctx := context.Background()
	for name, old := range map[string]*proxy.ServicePort{"changed": stickyRow(0, 10), "new": nil} {
		t.Run(name, func(t *testing.T) {
			f := &faulty{nft.NewFake(), func(*nft.Op) error { return nil }}
			d := New(f, Settings{MarkBit: 14})
			s := plainState(0)
			if old != nil {
				s = stickyState(old)
			}
			if err := d.Sync(ctx, s); err != nil {
				t.Fatal(err)
			}
			f.fails = func(op *nft.Op) error {
				if op.Kind == nft.AddElement && op.Set == d.tables[0].ids {
					return unix.ENOMEM
				}
				return nil
			}
			for i := range smallHalf / 10 {
				err := d.Apply(ctx, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: stickyRow(10*i+10, 10)}}})
				if refused := (*proxy.RefusedError)(nil); !errors.As(err, &refused) {
					t.Fatalf("Apply gave %v; want the row refused", err)
				}
			}
			wantIDs(t, d, old)
		})
	}
}
