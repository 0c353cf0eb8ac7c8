package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Conn queries the kernel, in the network namespace of the thread that calls a method. Its
// zero value is ready to use.
type Conn struct{}

// listTries bounds how often a listing that changes interrupt is tried.
const listTries = 5

// Listing calls list, and repeats it while changes interrupt it.
func Listing[T any](list func() ([]T, error)) (all []T, err error) {
	err = netlink.ErrDumpInterrupted
	for try := 0; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		all, err = list()
	}
	return all, err
}

// List returns the addresses that sockets can be bound to. It leaves out IPv6 addresses
// whose duplicate address detection has not ended, or has failed.
func (Conn) List() ([]netip.Addr, error) {
	list, err := Listing(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// LocalPrefixes returns the destinations that the kernel delivers on this host: its
// addresses, and other prefixes in the local routing table, such as 127.0.0.0/8 or the
// addresses of load balancers that a cloud's agent adds. That table does not have
// addresses of links in a VRF, which is why addresses are listed, too.
func (c Conn) LocalPrefixes() ([]netip.Prefix, error) {
	addrs, err := c.List()
	if err != nil {
		return nil, err
	}
	return localTable(hostPrefixes(addrs), unix.RTN_LOCAL)
}

// Occupied returns the addresses that sockets can be bound to, and the broadcast and anycast
// addresses of this host, which stay that even if a link has them as addresses.
func (c Conn) Occupied() ([]netip.Addr, error) {
	addrs, err := c.List()
	if err != nil {
		return nil, err
	}
	others, err := localTable(nil, unix.RTN_BROADCAST, unix.RTN_ANYCAST)
	for _, p := range others {
		addrs = append(addrs, p.Addr())
	}
	return addrs, err
}

// localTable appends the destinations of some types in the local routing table.
func localTable(out []netip.Prefix, types ...int) ([]netip.Prefix, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	_ = h.SetStrictCheck(true) // before Linux 4.20 the kernel sends all tables instead of the requested one
	for _, t := range types {
		routes, err := Listing(func() ([]netlink.Route, error) {
			which := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: t}
			return h.RouteListFiltered(netlink.FAMILY_ALL, which, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		})
		if err != nil {
			return nil, fmt.Errorf("list local routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue // not an IP route
			}
			if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				bits, _ := r.Dst.Mask.Size()
				out = append(out, netip.PrefixFrom(addr, bits))
			}
		}
	}
	return out, nil
}

// Local returns the name of the link that makes an address local, or "" if the address is
// not local. It lists nothing.
func (Conn) Local(a netip.Addr) (string, error) {
	routes, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case noRoute(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("find the route to %v: %w", a, err)
	case len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL:
		return "", nil
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("find the link of %v: %w", a, err)
	}
	return l.Attrs().Name, nil
}

// noRoute reports whether an error means that there is no route to an address: none exists,
// it is a prohibiting one, or the kernel lacks the family.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP,
	}, func(e error) bool { return errors.Is(err, e) })
}

// Watch returns a channel that has a token if addresses may have changed since the last
// token was received. It is closed when ctx ends, or earlier if events were lost.
func (Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate)
	ctx, stop := context.WithCancel(ctx)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		stop()
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		defer stop() // closes the library's socket
		for range updates {
			notify(changed)
		}
	}()
	return changed, nil
}
