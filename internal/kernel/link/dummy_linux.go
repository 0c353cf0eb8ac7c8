package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	batch "sluice/internal/kernel/netlink"
)

// Dummy is a dummy link of the kernel, in the network namespace that it was opened in.
type Dummy struct {
	handle *netlink.Handle
	conn   *batch.Conn // adds and removes many addresses at once
	name   string
	link   netlink.Link // set by Find; nil unless the last Find succeeded
}

// OpenDummy opens handles for the dummy link of a name, which need not exist.
func OpenDummy(name string) (*Dummy, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	conn, err := batch.Open(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, err
	}
	return &Dummy{handle: h, conn: conn, name: name}, nil
}

func (d *Dummy) Find() (Note, error) {
	d.link = nil
	l, err := d.handle.LinkByName(d.name)
	switch missing := (netlink.LinkNotFoundError{}); {
	case errors.As(err, &missing):
		return nil, ErrNoLink
	case err != nil:
		return nil, fmt.Errorf("find link %s: %w", d.name, err)
	case l.Type() != "dummy":
		return nil, fmt.Errorf("link %s is %w but of type %s: rename or delete it", d.name, ErrNotDummy, l.Type())
	}
	d.link = l
	return readNote(l.Attrs().Alias), nil
}

func (d *Dummy) Create() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = d.name
	if err := d.handle.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add dummy link %s (needs kernel module dummy): %w", d.name, err)
	}
	_, err := d.Find()
	return err
}

// Delete deletes the link and its addresses.
func (d *Dummy) Delete() error { return d.handle.LinkDel(d.link) }

// SetNote stores a note in the alias of the link.
func (d *Dummy) SetNote(n Note) error {
	if err := d.handle.LinkSetAlias(d.link, n.String()); err != nil {
		return fmt.Errorf("set alias of link %s: %w", d.name, err)
	}
	return nil
}

func (d *Dummy) List() (on, routed []netip.Addr, err error) {
	routes, err := d.routes()
	var list []netlink.Addr
	if err == nil { // after the routes: Add may make an address of one meanwhile, but never the reverse
		list, err = Listing(func() ([]netlink.Addr, error) { return d.handle.AddrList(d.link, netlink.FAMILY_ALL) })
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses of link %s: %w", d.name, err)
	}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if ones, bits := a.Mask.Size(); ok && ones == bits {
			on = append(on, addr)
		}
		delete(routes, addr)
	}
	return on, slices.Collect(maps.Keys(routes)), nil
}

// routes returns the IPv4 addresses that local routes over the link are for.
func (d *Dummy) routes() (all map[netip.Addr]bool, err error) {
	err = batch.RetryInterrupted(context.Background(), listTries, func() error {
		all = map[netip.Addr]bool{}
		d.conn.Request(unix.RTM_GETROUTE, unix.NLM_F_DUMP, [4]byte{unix.AF_INET})
		d.conn.Header([]byte{unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL, 0, unix.RTN_LOCAL, 0, 0, 0, 0})
		d.conn.Raw(unix.RTA_OIF, string(binary.NativeEndian.AppendUint32(nil, d.index())))
		return d.conn.Ask(func(m batch.Message) {
			if to, ok := d.localRoute(m.Body); ok {
				all[to] = true
			}
		})
	})
	if errors.Is(err, unix.ENOENT) { // a new namespace has no table of local routes
		err = nil
	}
	return all, err
}

// localRoute returns the IPv4 address that a route is for, if it is a local route over the
// link as the kernel adds it, not one that somebody else has added. Kernels that ignore
// what a listing is limited to send all routes.
func (d *Dummy) localRoute(route []byte) (to netip.Addr, ok bool) {
	if len(route) < unix.SizeofRtMsg || route[1] != 32 || route[5] != unix.RTPROT_KERNEL || route[7] != unix.RTN_LOCAL {
		return to, false
	}
	attrs := batch.Attrs(route[unix.SizeofRtMsg:])
	if to, ok = netip.AddrFromSlice(attrs.Get(unix.RTA_DST)); !ok || !to.Is4() {
		return to, false
	}
	link := attrs.Get(unix.RTA_OIF)
	return to, len(link) == 4 && binary.NativeEndian.Uint32(link) == d.index()
}

// Has looks up the local route that the kernel adds for an address of the link.
func (d *Dummy) Has(a netip.Addr) (bool, error) {
	routes, err := d.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case noRoute(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find the route to %v: %w", a, err)
	}
	return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
}

// Route adds the local routes of IPv4 addresses, exactly as the kernel adds them with the
// addresses: so Add finds them there, and Remove removes them.
func (d *Dummy) Route(all ...netip.Addr) map[netip.Addr]error {
	four := slices.DeleteFunc(slices.Clone(all), netip.Addr.Is6)
	refused := d.change(d.encodeRoute, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, "route %v to link %s: %w", four)
	maps.Copy(refused, d.Add(slices.DeleteFunc(slices.Clone(all), netip.Addr.Is4)...))
	return refused
}

// Add adds addresses to the link. When it returns, packets to them are delivered on this
// host: it waits for the routes, which IPv6 adds a little later.
func (d *Dummy) Add(all ...netip.Addr) map[netip.Addr]error {
	refused := d.change(d.encodeAddr, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, "add %v to link %s: %w", all)
	for _, a := range all {
		for begun := time.Now(); a.Is6() && refused[a] == nil; time.Sleep(routePoll) {
			if has, _ := d.Has(a); has {
				break
			}
			if time.Since(begun) > routeWait {
				refused[a] = fmt.Errorf("add %v to link %s: no route to it after %v", a, d.name, routeWait)
			}
		}
	}
	return refused
}

// How long, and how often, Add looks for the route of an IPv6 address.
const (
	routeWait = 5 * time.Second
	routePoll = 50 * time.Microsecond
)

func (d *Dummy) Remove(a netip.Addr) error {
	const format = "remove %v from link %s: %w"
	err := d.change(d.encodeAddr, unix.RTM_DELADDR, 0, format, []netip.Addr{a})[a]
	if a.Is4() && errors.Is(err, unix.EADDRNOTAVAIL) {
		if failed := d.change(d.encodeRoute, unix.RTM_DELROUTE, 0, format, []netip.Addr{a})[a]; !errors.Is(failed, unix.ESRCH) {
			return failed
		}
	}
	return err
}

func (d *Dummy) Close() error {
	d.handle.Close()
	return d.conn.Close()
}

// change sends a request for each address, all by one system call, and returns why some
// were refused. Encode writes the requests; format is that of the errors: address, link,
// reason. What is to be added and exists is not refused.
func (d *Dummy) change(encode func(kind, flags uint16, a netip.Addr) uint32, kind, flags uint16, format string, all []netip.Addr) map[netip.Addr]error {
	refused, sent := map[netip.Addr]error{}, map[uint32]netip.Addr{}
	if len(all) == 0 {
		return refused
	}
	d.conn.Reset()
	for _, a := range all {
		sent[encode(kind, flags, a)] = a
	}
	err := d.conn.Send()
	var errs map[uint32]error
	if err == nil {
		errs, err = d.conn.Answers()
	}
	for seq, a := range sent {
		if why := cmp.Or(err, errs[seq]); why != nil && !errors.Is(why, unix.EEXIST) {
			refused[a] = fmt.Errorf(format, a, d.name, why)
		}
	}
	return refused
}

// index returns the interface index of the link; 0, which no link has, if Find has failed.
func (d *Dummy) index() uint32 {
	if d.link == nil {
		return 0
	}
	return uint32(d.link.Attrs().Index)
}

// encodeRoute writes a message about the local route of an IPv4 address, and returns the
// message's sequence number.
func (d *Dummy) encodeRoute(kind, flags uint16, a netip.Addr) uint32 {
	seq := d.conn.Begin(kind, flags, [4]byte{unix.AF_INET, byte(a.BitLen()), 0, 0})
	d.conn.Header([]byte{unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0})
	d.conn.Raw(unix.RTA_DST, string(a.AsSlice()))
	d.conn.Raw(unix.RTA_PREFSRC, string(a.AsSlice()))
	d.conn.Raw(unix.RTA_OIF, string(binary.NativeEndian.AppendUint32(nil, d.index())))
	return seq
}

// encodeAddr writes a message about an address with a host prefix (/32 or /128), and returns
// the message's sequence number. Duplicate address detection is off, because a dummy link has
// no neighbours, so the address is usable at once. An IPv6 address is deprecated from the
// beginning, so that the kernel does not choose it as the source of connections to other hosts.
func (d *Dummy) encodeAddr(kind, flags uint16, a netip.Addr) uint32 {
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	seq := d.conn.Begin(kind, flags, [4]byte{family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE})
	d.conn.Header(binary.NativeEndian.AppendUint32(nil, d.index()))
	d.conn.Raw(unix.IFA_LOCAL, string(a.AsSlice()))
	d.conn.Raw(unix.IFA_ADDRESS, string(a.AsSlice()))
	if a.Is6() {
		d.conn.Raw(unix.IFA_CACHEINFO, "\x00\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x00") // preferred lifetime 0, valid lifetime infinite
	}
	return seq
}
