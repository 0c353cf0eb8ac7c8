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

// host is what the node's addresses and routes say about the source addresses that its
// sockets get. The prefixes are sorted and disjoint.
type host struct {
	addrs []netip.Addr

	// fromPods are destinations to which the node's sockets have a source address, or may
	// have one, that policy takes for a pod's.
	fromPods []netip.Prefix
	// hinted are destinations to which the node's sockets have another source address than
	// masquerading would choose, because of the preferred source of a route.
	hinted []netip.Prefix
}

// sameSource reports whether an unbound socket of the node that connects to one of the
// endpoints has the source address that the rules would give a connection to the frontend.
func (h *host) sameSource(f proxy.Frontend, to []proxy.Endpoint) bool {
	if f.Kind != proxy.NodePort && containedIn(h.fromPods, f.Addr.Addr()) {
		return false
	}
	return len(h.hinted) == 0 || !slices.ContainsFunc(to, func(e proxy.Endpoint) bool { return containedIn(h.hinted, e.Addr.Addr()) })
}

// containedIn reports whether an address is in one of the prefixes, which are sorted and
// disjoint.
func containedIn(sorted []netip.Prefix, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(sorted, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return i < len(sorted) && sorted[i].Contains(a) || i > 0 && sorted[i-1].Contains(a)
}

// sameRows reports whether rows are the same for two hosts.
func (h *host) sameRows(other *host) bool {
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
	return newHost(addrs, routes, n.LocalPods.Sources), nil
}

// newHost derives a host from the node's addresses and routes, and the prefixes of pods.
func newHost(addrs []netlink.Addr, routes []netlink.Route, pods []netip.Prefix) *host {
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
		source, hinted := sourceAddr(r, to, byLink[r.LinkIndex])
		if hinted {
			out.hinted = append(out.hinted, to)
		}
		// The address of another link: any of them.
		mayBePods := !source.IsValid() && slices.ContainsFunc(out.addrs, func(a netip.Addr) bool { return proxy.Contains(pods, a) })
		if mayBePods || source.IsValid() && proxy.Contains(pods, source) {
			out.fromPods = append(out.fromPods, to)
		}
	}
	out.hinted, out.fromPods = proxy.Outermost(out.hinted), proxy.Outermost(out.fromPods)
	return out
}

// destination returns the destination of a route, and whether connections to other hosts
// may use it.
func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST {
		return netip.Prefix{}, false
	}
	if r.Dst == nil {
		return netip.PrefixFrom([...]netip.Addr{proxy.IPv4: netip.IPv4Unspecified(), proxy.IPv6: netip.IPv6Unspecified()}[routeFamily(r)], 0), true
	}
	ip, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), ones), ok && !ip.IsLinkLocalUnicast() && !ip.IsMulticast()
}

func routeFamily(r netlink.Route) proxy.Family {
	if r.Family == netlink.FAMILY_V6 {
		return proxy.IPv6
	}
	return proxy.IPv4
}

// sourceAddr returns the source address of an unbound socket that uses a route to the
// destination: invalid if it is that of another link. Hinted means that it differs from
// the address of the link because the route has a preferred source. OnLink are the
// addresses of the route's link.
func sourceAddr(r netlink.Route, to netip.Prefix, onLink []netip.Prefix) (source netip.Addr, hinted bool) {
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

// writeNodeAddrs brings the map of the node's addresses to that of h.
func (d *Dataplane) writeNodeAddrs(h *host, n *proxy.Node) error {
	want := map[addrKey]uint32{}
	for _, a := range h.addrs {
		var flags uint32
		if in, except := n.NodePortAddresses(proxy.FamilyOf(a)); proxy.Contains(in, a) && !proxy.Contains(except, a) {
			flags |= addrTakesNodePorts
		}
		if proxy.Contains(n.LocalPods.Sources, a) {
			flags |= addrInPodRange
		}
		if a.IsLoopback() {
			flags |= addrIsLoopback
		}
		want[a.As16()] = flags
	}
	d.nodeAddrs = maps.Clone(want)
	var gone []addrKey
	err := forEach(d.kernel.NodeAddrs, func(k addrKey, v uint32) {
		switch flags, stays := want[k]; {
		case !stays:
			gone = append(gone, k)
		case flags == v:
			delete(want, k)
		}
	})
	if err == nil && len(want)+len(gone) > 0 {
		err = d.kernel.writeMaps(func() (err error) {
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
