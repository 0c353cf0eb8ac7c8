package link

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Subnets are the subnets of this host's links, in the network namespace that they were
// opened in. Any goroutine may use them.
type Subnets struct {
	handle *netlink.Handle
}

// OpenSubnets opens a socket for requests.
func OpenSubnets() (*Subnets, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return &Subnets{h}, nil
}

// Close closes the socket.
func (s *Subnets) Close() { s.handle.Close() }

// List returns the subnets of all addresses, except for loopback and link-local addresses and
// for addresses with a host prefix (/32 or /128).
func (s *Subnets) List() (out []netip.Prefix, err error) {
	list, err := Listing(func() ([]netlink.Addr, error) { return s.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		bits, all := a.Mask.Size()
		if ok && bits < all && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			out = append(out, netip.PrefixFrom(addr, bits).Masked())
		}
	}
	return out, nil
}

// LinkOf returns the index of the link that an address is directly reachable on, and 0 if
// there is none: it is this host's own, a gateway leads to it, or nothing does. It lists
// nothing.
func (s *Subnets) LinkOf(a netip.Addr) (int, error) {
	routes, err := s.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case noRoute(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("find the route to %v: %w", a, err)
	case len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST || routes[0].Gw != nil || routes[0].Via != nil:
		return 0, nil
	}
	return routes[0].LinkIndex, nil
}
