package link

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Subnets say which addresses reach each other directly, over one of this host's links.
type Subnets struct {
	prefixes []netip.Prefix // of the links' addresses, without those of single hosts
	routes   []route        // of the main table, the most specific ones first
}

// route is how packets to a prefix are sent.
type route struct {
	to   netip.Prefix
	link int // 0 if they go through a gateway, or nowhere
}

// SubnetReader reads the subnets of the network namespace that it was opened in. Any goroutine may
// use it.
type SubnetReader struct {
	handle *netlink.Handle
}

// OpenSubnetReader opens a socket for requests.
func OpenSubnetReader() (*SubnetReader, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return &SubnetReader{h}, nil
}

// Close closes the socket.
func (r *SubnetReader) Close() { r.handle.Close() }

// Read lists the addresses of all links and, if any has a subnet, the main routing table.
func (r *SubnetReader) Read() (s Subnets, err error) {
	h := r.handle
	addrs, err := Listing(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return s, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		bits, all := a.Mask.Size()
		if ok && bits < all && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			s.prefixes = append(s.prefixes, netip.PrefixFrom(addr, bits).Masked())
		}
	}
	if len(s.prefixes) == 0 {
		return s, nil
	}
	routes, err := Listing(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return s, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue // not an IP route
		}
		if to, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			out := route{to: netip.PrefixFrom(to, bits)}
			if r.Type == unix.RTN_UNICAST && r.Gw == nil && r.Via == nil {
				out.link = r.LinkIndex
			}
			s.routes = append(s.routes, out)
		}
	}
	slices.SortStableFunc(s.routes, func(a, b route) int { return cmp.Compare(b.to.Bits(), a.to.Bits()) })
	return s, nil
}

// Share reports whether two addresses are on one subnet of a link. A more specific route may lead
// elsewhere: some CNI plugins give pods addresses of the node's own subnet, and a link each.
func (s Subnets) Share(a, b netip.Addr) bool {
	if !slices.ContainsFunc(s.prefixes, func(p netip.Prefix) bool { return p.Contains(a) && p.Contains(b) }) {
		return false
	}
	l := s.linkOf(a)
	return l != 0 && l == s.linkOf(b)
}

func (s Subnets) linkOf(a netip.Addr) int {
	if i := slices.IndexFunc(s.routes, func(r route) bool { return r.to.Contains(a) }); i >= 0 {
		return s.routes[i].link
	}
	return 0
}
