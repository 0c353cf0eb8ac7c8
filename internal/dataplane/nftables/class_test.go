package nftables

import (
	"context"
	"testing"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// attempts counts all batches that are sent, also those that are refused.
type attempts struct {
	nft.Interface
	n int
}

func (a *attempts) Commit(ctx context.Context, b *nft.Batch) error {
	if len(b.Ops) > 0 {
		a.n++
	}
	return a.Interface.Commit(ctx, b)
}

// TestCostOfFlapping takes a Service from three endpoints to two and back. Its
// two classes are kept for it however often that happens: each change is one
// batch, and none is refused, for which the kernel takes its time.
func TestCostOfFlapping(t *testing.T) {
	ctx := context.Background()
	conn := &attempts{Interface: nft.NewFake()}
	d := New(conn, Settings{MarkBit: 14})
	a, b := plainRow(0, 3, 0), plainRow(0, 2, 0)
	s := plainState(0)
	s.Rows[a.Key] = a
	if err := d.Sync(ctx, s); err != nil {
		t.Fatal(err)
	}
	conn.n = 0
	const changes = 10 * maxUnused
	for range changes {
		if err := d.Apply(ctx, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}}); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	}
	if conn.n != changes {
		t.Errorf("%d changes took %d batches", changes, conn.n)
	}
	if n := len(d.tables[0].classes.unused); n > maxUnused+1 {
		t.Errorf("%d classes are noted as unused; want at most %d", n, maxUnused+1)
	}
}
