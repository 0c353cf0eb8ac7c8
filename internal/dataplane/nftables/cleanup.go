package nftables

import (
	"context"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Cleanup removes our tables, and nothing else. It returns what it removed. If a
// service proxy opened loopback, it is closed again before its guard goes; if it
// cannot be, the guard stays. A caller who has a guard of his own keeps it open.
func Cleanup(ctx context.Context, keepLoopback bool) (removed []string, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Close()
	return cleanup(ctx, conn, sysctl.Kernel{}, keepLoopback)
}

func cleanup(ctx context.Context, conn nft.Interface, k sysctl.Interface, keepLoopback bool) (removed []string, stays error) {
	var b nft.Batch
	for _, f := range proxy.Families {
		t := newTable(f, 0, tableName)
		listing, err := conn.List(ctx, t.Table)
		if err != nil {
			return nil, explain(err)
		}
		if listing == nil {
			continue
		}
		if traces(listing).Noted && !keepLoopback {
			var done string
			if done, stays = localnet.PutBack(k); done != "" {
				removed = append(removed, done)
			}
		}
		guarded := f == proxy.IPv4 && stays != nil
		if guarded && onlyGuard(listing) {
			continue
		}
		b.DeleteTable(t.Table)
		if removed = append(removed, t.Table.String()); guarded {
			t.addGuard(&b, localnet.Guard{InForce: true, Noted: true})
		}
	}
	if err := conn.Commit(ctx, &b); err != nil {
		return nil, explain(err)
	}
	return removed, stays
}
