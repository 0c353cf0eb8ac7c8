package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

// List returns the addresses of the link, without link-local ones.
func (d *Dummy) List() (out []netip.Addr, err error) {
	list, err := Listing(func() ([]netlink.Addr, error) { return d.handle.AddrList(d.link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %s: %w", d.name, err)
	}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLinkLocalUnicast() {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
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
	return d.link != nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL && routes[0].LinkIndex == d.link.Attrs().Index, nil
}

// Add adds addresses to the link. When it returns, packets to them are delivered on this
// host: it waits for the routes, which IPv6 adds a little later.
func (d *Dummy) Add(all ...netip.Addr) map[netip.Addr]error {
	refused := d.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, "add %v to link %s: %w", all)
	for _, a := range all {
		for begun := time.Now(); a.Is6() && refused[a] == nil && !d.routed(a); time.Sleep(routePoll) {
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

// routed reports whether packets to an address are delivered on this host.
func (d *Dummy) routed(a netip.Addr) bool {
	routes, err := d.handle.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

func (d *Dummy) Remove(a netip.Addr) error {
	return d.change(unix.RTM_DELADDR, 0, "remove %v from link %s: %w", []netip.Addr{a})[a]
}

func (d *Dummy) Close() error {
	d.handle.Close()
	return d.conn.Close()
}

// change sends a request for each address, all by one system call, and returns why some
// were refused. Format is that of the errors: address, link, reason.
func (d *Dummy) change(kind, flags uint16, format string, all []netip.Addr) map[netip.Addr]error {
	refused, sent := map[netip.Addr]error{}, map[uint32]netip.Addr{}
	d.conn.Reset()
	for _, a := range all {
		sent[d.encode(kind, flags, a)] = a
	}
	err := d.conn.Send()
	var errs map[uint32]error
	if err == nil {
		errs, err = d.conn.Answers()
	}
	for seq, a := range sent {
		if why := cmp.Or(err, errs[seq]); why != nil {
			refused[a] = fmt.Errorf(format, a, d.name, why)
		}
	}
	return refused
}

// encode writes a message about an address with a host prefix (/32 or /128), and returns
// the message's sequence number. Duplicate address detection is off, because a dummy link has
// no neighbours, so the address is usable at once. An IPv6 address is deprecated from the
// beginning, so that the kernel does not choose it as the source of connections to other hosts.
func (d *Dummy) encode(kind, flags uint16, a netip.Addr) uint32 {
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	seq := d.conn.Begin(kind, flags, [4]byte{family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE})
	d.conn.Header(binary.NativeEndian.AppendUint32(nil, uint32(d.link.Attrs().Index)))
	d.conn.Raw(unix.IFA_LOCAL, string(a.AsSlice()))
	d.conn.Raw(unix.IFA_ADDRESS, string(a.AsSlice()))
	if a.Is6() {
		d.conn.Raw(unix.IFA_CACHEINFO, "\x00\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x00") // preferred lifetime 0, valid lifetime infinite
	}
	return seq
}
