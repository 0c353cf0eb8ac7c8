package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
)

// host is what the node's addresses and routes say about its sockets.
type host struct {
	addrs []netip.Addr

	// Towards these the node speaks from an address that policy takes for a pod's.
	fromPods []netip.Prefix
	// Towards these it speaks from another address than masquerading would choose.
	hinted []netip.Prefix
}

// plain reports whether a socket of the node that is not bound looks, towards
// endpoints, as the rules would make it look.
func (h *host) plain(f proxy.Frontend, to []proxy.Endpoint) bool {
	if f.Kind != proxy.NodePort && within(h.fromPods, f.Addr.Addr()) {
		return false
	}
	return len(h.hinted) == 0 || !slices.ContainsFunc(to, func(e proxy.Endpoint) bool { return within(h.hinted, e.Addr.Addr()) })
}

// within reports whether an address is in one of some disjoint, sorted prefixes.
func within(sorted []netip.Prefix, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(sorted, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return i < len(sorted) && sorted[i].Contains(a) || i > 0 && sorted[i-1].Contains(a)
}

// same reports whether rows are alike for two hosts.
func (h *host) same(other *host) bool {
	return slices.Equal(h.fromPods, other.fromPods) && slices.Equal(h.hinted, other.hinted)
}

// readHost reads the node's addresses and routes.
func readHost(h *netlink.Handle, n *proxy.Node) (*host, error) {
	addrs, err := link.Listing(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	routes, err := link.Listing(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return judge(addrs, routes, n.LocalPods.Sources), nil
}

// judge finds the destinations towards which the node's sockets are not plain.
func judge(addrs []netlink.Addr, routes []netlink.Route, pods []netip.Prefix) *host {
	out := &host{}
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ones, _ := a.Mask.Size()
			out.addrs = append(out.addrs, ip.Unmap())
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	for _, r := range routes {
		to, ok := destination(r)
		if !ok {
			continue
		}
		source, hinted := sourceOf(r, to, byLink[r.LinkIndex])
		if hinted {
			out.hinted = append(out.hinted, to)
		}
		unsure := !source.IsValid() && slices.ContainsFunc(out.addrs, func(a netip.Addr) bool { return proxy.Contains(pods, a) })
		if unsure || source.IsValid() && proxy.Contains(pods, source) {
			out.fromPods = append(out.fromPods, to)
		}
	}
	out.hinted, out.fromPods = proxy.Outermost(out.hinted), proxy.Outermost(out.fromPods)
	return out
}

// destination returns where a route leads that a socket may take to another host.
func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST {
		return netip.Prefix{}, false
	}
	if r.Dst == nil {
		return netip.PrefixFrom([...]netip.Addr{proxy.IPv4: netip.IPv4Unspecified(), proxy.IPv6: netip.IPv6Unspecified()}[family(r)], 0), true
	}
	ip, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), ones), ok && !ip.IsLinkLocalUnicast() && !ip.IsMulticast()
}

func family(r netlink.Route) proxy.Family {
	if r.Family == netlink.FAMILY_V6 {
		return proxy.IPv6
	}
	return proxy.IPv4
}

// sourceOf returns which address a socket takes towards a route's destination,
// invalid if it is another link's, and whether that is only because of a hint.
func sourceOf(r netlink.Route, to netip.Prefix, onLink []netip.Prefix) (source netip.Addr, hinted bool) {
	next := to.Addr()
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		next = gw.Unmap()
	}
	for _, p := range onLink {
		if p.Addr().Is4() != next.Is4() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !source.IsValid() {
			source = p.Addr()
		}
		if p.Masked().Contains(next) {
			source = p.Addr()
			break
		}
	}
	if hint, ok := netip.AddrFromSlice(r.Src); ok {
		return hint.Unmap(), hint.Unmap() != source
	}
	return source, false
}

// writeHost tells programs which addresses are the node's.
func (d *Dataplane) writeHost(h *host, n *proxy.Node) error {
	want := map[addrKey]uint32{}
	for _, a := range h.addrs {
		var flags uint32
		if in, except := n.NodePortAddresses(proxy.FamilyOf(a)); proxy.Contains(in, a) && !proxy.Contains(except, a) {
			flags |= takesNodePorts
		}
		if proxy.Contains(n.LocalPods.Sources, a) {
			flags |= podRange
		}
		if a.IsLoopback() {
			flags |= isLoopback
		}
		want[a.As16()] = flags
	}
	d.addrs = maps.Clone(want)
	var gone []addrKey
	err := each(d.kernel.NodeAddrs, func(k addrKey, v uint32) {
		switch flags, stays := want[k]; {
		case !stays:
			gone = append(gone, k)
		case flags == v:
			delete(want, k)
		}
	})
	if err == nil && len(want)+len(gone) > 0 {
		err = d.kernel.change(func() (err error) {
			for k, flags := range want {
				err = errors.Join(err, d.kernel.NodeAddrs.Update(k, flags, ebpf.UpdateAny))
			}
			for _, k := range gone {
				err = errors.Join(err, d.kernel.NodeAddrs.Delete(k))
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("write addresses of the node: %w", err)
	}
	return nil
}
