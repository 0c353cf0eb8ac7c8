package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
)

// Cleanup removes what this mode and kube-proxy's ipvs mode left behind, unless this
// mode is open. Package iptables removes kube-proxy's chains and sets. If another mode
// is open, what IPVS connections need stays until they end.
func Cleanup(ctx context.Context, _ mode.Settings, open proxy.Dataplane) ([]string, error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	removed, err := nftables.Overlay{Table: tableName}.Cleanup(ctx, nftables.Keep{Loopback: mode.KeepsLoopback(open)})
	k, failed := openKernel()
	if failed != nil && !errors.Is(failed, ipvs.ErrMissing) {
		return removed, errors.Join(err, failed)
	}
	more, failed := k.cleanup(ctx, open != nil)
	return append(removed, more...), errors.Join(err, failed, k.close())
}

// cleanup removes the virtual servers at addresses of the link, and then the link.
// Virtual servers at other addresses may be another program's and stay. Gently: a
// server with connections stays, and the link too, but gets no new ones; except at a
// NodePort, whose open connections conntrack translates without IPVS.
func (k kernel) cleanup(ctx context.Context, gently bool) (removed []string, err error) {
	were, err := k.link.Find()
	if errors.Is(err, link.ErrNoLink) || errors.Is(err, link.ErrNotDummy) {
		return nil, nil
	}
	on, routed, servers, err := k.list(ctx, err)
	if err != nil {
		return nil, err
	}
	ours := map[netip.Addr]bool{}
	for _, a := range append(on, routed...) {
		ours[a] = true
	}
	others, connections := 0, uint32(0)
	for _, s := range slices.SortedFunc(maps.Keys(servers), func(a, b ipvs.Server) int { return strings.Compare(a.String(), b.String()) }) {
		if !ours[s.Addr.Addr()] {
			others++
			continue
		}
		n, failed := k.quiet(ctx, s, gently && s.Addr.Addr() != aliases[proxy.FamilyOf(s.Addr.Addr())])
		if connections += n; n == 0 && failed == nil {
			removed = append(removed, s.String())
		}
		err = errors.Join(err, failed)
	}
	if connections > 0 {
		err = errors.Join(err, fmt.Errorf("keep link %s and IPVS virtual servers until their connections end: %d %w", linkName, connections, proxy.ErrDraining))
	}
	if err != nil {
		return removed, err
	}
	if others > 0 {
		removed = append(removed, fmt.Sprintf("left alone: %d IPVS virtual server%s at addresses that are not on link %s (those of kube-proxy's "+
			"node ports cannot be told from those of other programs)", others, strings.Repeat("s", min(others-1, 1)), linkName))
	}
	if err := errors.Join(k.set(ctx, were), k.link.Delete()); err != nil {
		return removed, fmt.Errorf("remove link %s: %w", linkName, err)
	}
	return append(removed, "link "+linkName+" and its addresses"), nil
}

// quiet removes a virtual server. Gently: if it has connections, quiet returns their
// number and only keeps it from getting new ones.
func (k kernel) quiet(ctx context.Context, s ipvs.Server, gently bool) (connections uint32, err error) {
	ops := []ipvs.Op{{Verb: ipvs.Delete, Server: s}}
	if gently {
		reals, err := k.servers.Reals(ctx, s)
		if err != nil {
			return 0, err
		}
		var idle []ipvs.Op
		for _, r := range reals {
			connections += r.Connections
			idle = append(idle, ipvs.Op{Verb: ipvs.Set, Server: s, Real: ipvs.Real{Addr: r.Addr}})
		}
		if connections > 0 {
			ops = idle
		}
	}
	refused, err := k.servers.Do(ctx, ops)
	if e := refused[0]; e != nil && !errors.Is(e, unix.ESRCH) {
		err = errors.Join(err, e)
	}
	return connections, err
}
