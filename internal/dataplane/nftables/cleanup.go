package nftables

import (
	"context"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Cleanup removes our tables, and nothing else.
func Cleanup(ctx context.Context) error {
	conn, err := nft.Open()
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	var b nft.Batch
	for _, f := range proxy.Families {
		t := newTable(f, 0, tableName)
		listing, err := conn.List(ctx, t.Table)
		if err != nil {
			return explain(err)
		}
		if listing != nil {
			b.DeleteTable(t.Table)
		}
	}
	return explain(conn.Commit(ctx, &b))
}
