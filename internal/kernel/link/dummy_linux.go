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

// Dummy is the kernel's dummy link, in the network namespace that it was opened in.
type Dummy struct {
	handle *netlink.Handle
	conn   *batch.Conn // for addresses, of which there are many
	name   string
	link   netlink.Link // as last found; nil: not known
}

// OpenDummy opens the dummy link of a name, be it there or not.
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
		return nil, fmt.Errorf("look for link %s: %w", d.name, err)
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
		return fmt.Errorf("add dummy link %s (module dummy): %w", d.name, err)
	}
	_, err := d.Find()
	return err
}

// Delete removes the link with its addresses.
func (d *Dummy) Delete() error { return d.handle.LinkDel(d.link) }

// SetNote leaves a note on the link.
func (d *Dummy) SetNote(n Note) error {
	if err := d.handle.LinkSetAlias(d.link, n.String()); err != nil {
		return fmt.Errorf("set alias of link %s: %w", d.name, err)
	}
	return nil
}

// List returns the addresses on the link, without link-local ones.
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

// Has asks for the route that an address makes.
func (d *Dummy) Has(a netip.Addr) (bool, error) {
	routes, err := d.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case noRoute(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the route to %v: %w", a, err)
	}
	return d.link != nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL && routes[0].LinkIndex == d.link.Attrs().Index, nil
}

// Add gives the link addresses. When it returns, packets to them are for this host:
// IPv6 makes routes a little later.
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

const (
	routeWait = 5 * time.Second
	routePoll = 50 * time.Microsecond
)

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

// change does the same to addresses, all by one system call, and returns why some
// of them were refused.
func (d *Dummy) change(kind, flags uint16, words string, all []netip.Addr) map[netip.Addr]error {
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
			refused[a] = fmt.Errorf(words, a, d.name, why)
		}
	}
	return refused
}

// encode writes a message about an address of one host, in use at once: there are
// no neighbours to ask. One of IPv6 is deprecated from the beginning, so that no
// connection to another host is made from it.
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
		d.conn.Raw(unix.IFA_CACHEINFO, "\x00\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x00") // preferred: never, valid: for ever
	}
	return seq
}
