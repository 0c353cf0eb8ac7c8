package nftables

import (
	"context"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// kubeProxyTable is the table of kube-proxy's nftables mode, in both families.
const kubeProxyTable = "kube-proxy"

// Keep is what an open dataplane has made its own of what Cleanup would remove.
type Keep struct {
	Tables   bool // ours: it is this mode that is open
	Loopback bool // the setting that opened loopback: the dataplane has a guard for it
}

// Cleanup removes our tables and those of kube-proxy's nftables mode, but for
// what is kept, and returns what it removed. If a service proxy opened loopback,
// it is closed again before its guard goes; if it cannot be, the guard stays.
func (o Overlay) Cleanup(ctx context.Context, keep Keep) (removed []string, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Close()
	return cleanup(ctx, conn, sysctl.Kernel{}, o, keep)
}

func cleanup(ctx context.Context, conn nft.Interface, k sysctl.Interface, o Overlay, keep Keep) (removed []string, stays error) {
	var b nft.Batch
	for _, f := range proxy.Families {
		t := newTable(f, 0, o)
		theirs := nft.Table{Family: t.Table.Family, Name: kubeProxyTable}
		listing, err := listIfAny(ctx, conn, theirs)
		if err != nil {
			return nil, err
		}
		if listing != nil {
			b.DeleteTable(theirs)
			removed = append(removed, theirs.String())
		}
		if listing, err = listIfAny(ctx, conn, t.Table); err != nil {
			return nil, err
		}
		if listing == nil || keep.Tables {
			continue
		}
		if traces(listing).Noted && !keep.Loopback {
			var done string
			if done, stays = localnet.Reset(k); done != "" {
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
