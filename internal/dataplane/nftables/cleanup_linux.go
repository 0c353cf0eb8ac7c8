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

// Keep says what Cleanup must not remove, because an open dataplane uses it.
type Keep struct {
	Tables   bool // our tables: this mode is open
	Loopback bool // the sysctl route_localnet: the open dataplane guards loopback addresses
}

// Cleanup removes our tables and those of kube-proxy's nftables mode, except for what
// keep says, and returns what it removed. If a service proxy enabled route_localnet,
// it is disabled before the guard of loopback addresses is removed; if that is not
// possible, the guard stays.
func (o Overlay) Cleanup(ctx context.Context, keep Keep) (removed []string, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Close()
	return cleanup(ctx, conn, sysctl.Kernel{}, o, keep)
}

// cleanup is Cleanup with a kernel to work on. If it cannot disable route_localnet, it does the
// rest and returns that error.
func cleanup(ctx context.Context, conn nft.Interface, k sysctl.Interface, o Overlay, keep Keep) (removed []string, localnetErr error) {
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
			if done, localnetErr = localnet.Reset(k); done != "" {
				removed = append(removed, done)
			}
		}
		guarded := f == proxy.IPv4 && localnetErr != nil
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
	return removed, localnetErr
}
