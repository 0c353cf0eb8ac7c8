package nftables

import (
	"context"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Cleanup removes our tables, and nothing else. It returns what it removed.
func Cleanup(ctx context.Context) (removed []string, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Close()
	var b nft.Batch
	for _, f := range proxy.Families {
		t := newTable(f, 0, tableName)
		listing, err := conn.List(ctx, t.Table)
		if err != nil {
			return nil, explain(err)
		}
		if listing != nil {
			b.DeleteTable(t.Table)
			removed = append(removed, t.Table.String())
		}
	}
	if err := conn.Commit(ctx, &b); err != nil {
		return nil, explain(err)
	}
	return removed, nil
}
