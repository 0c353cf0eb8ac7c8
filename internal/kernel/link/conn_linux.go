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

// Conn asks the kernel. Its zero value is ready, and works in the network
// namespace of the thread that calls a method.
type Conn struct{}

// listTries bounds how often a listing is taken again that a change broke.
const listTries = 5

// Listing lists something, again if it changed meanwhile.
func Listing[T any](list func() ([]T, error)) (all []T, err error) {
	err = netlink.ErrDumpInterrupted
	for try := 0; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		all, err = list()
	}
	return all, err
}

// List returns the addresses that can be bound now, without those that IPv6
// still checks, or has found, to be another host's.
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

// LocalPrefixes returns what the kernel takes for this host's own: its addresses, and
// what else local routes say, as 127.0.0.0/8 or the addresses of load balancers that
// an agent of the cloud adds. The table of such routes does not have addresses that
// belong to a VRF, so those are listed too.
func (c Conn) LocalPrefixes() ([]netip.Prefix, error) {
	addrs, err := c.List()
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	_ = h.SetStrictCheck(true) // before Linux 4.20 the kernel sends all tables, not only the one asked for
	which := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	var routes []netlink.Route
	err = netlink.ErrDumpInterrupted
	for try := 0; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		routes, err = h.RouteListFiltered(netlink.FAMILY_ALL, which, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	}
	if err != nil {
		return nil, fmt.Errorf("list local routes: %w", err)
	}
	out := hosts(addrs)
	for _, r := range routes {
		if r.Dst == nil {
			continue // it is not of IP
		}
		if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	return out, nil
}

// Local returns the link that has packets to an address be for this host; empty if
// they are not. It lists nothing.
func (Conn) Local(a netip.Addr) (string, error) {
	routes, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case noRoute(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for the route to %v: %w", a, err)
	case len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL:
		return "", nil
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("look for the link of %v: %w", a, err)
	}
	return l.Attrs().Name, nil
}

// noRoute reports whether the kernel says that no packet gets there: there is no
// route, one that forbids it, or no such family.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP,
	}, func(e error) bool { return errors.Is(err, e) })
}

// Watch returns a channel that has a token whenever addresses may have changed
// since the last one was taken. It is closed when ctx ends, or earlier when the
// kernel had more to tell than it could.
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
		defer stop() // The library holds the socket until then.
		for range updates {
			notify(changed)
		}
	}()
	return changed, nil
}
