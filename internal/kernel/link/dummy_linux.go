package link

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dummy is the kernel's dummy link, in the network namespace that it was opened in.
type Dummy struct {
	handle *netlink.Handle
	name   string
	link   netlink.Link // as last found; nil: not known
}

var _ Holder = (*Dummy)(nil)

// OpenDummy opens the dummy link of a name, be it there or not.
func OpenDummy(name string) (*Dummy, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return &Dummy{handle: h, name: name}, nil
}

// Find looks for the link.
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

// Create makes the link.
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
	var list []netlink.Addr
	err = netlink.ErrDumpInterrupted
	for try := 0; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		list, err = d.handle.AddrList(d.link, netlink.FAMILY_ALL)
	}
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

// Add gives the link an address. When it returns, packets to it are for this host:
// IPv6 makes the route a little later.
func (d *Dummy) Add(a netip.Addr) error {
	if err := d.handle.AddrAdd(d.link, address(a)); err != nil {
		return fmt.Errorf("add %v to link %s: %w", a, d.name, err)
	}
	for begun := time.Now(); a.Is6() && !d.routed(a); time.Sleep(routePoll) {
		if time.Since(begun) > routeWait {
			return fmt.Errorf("add %v to link %s: no route to it after %v", a, d.name, routeWait)
		}
	}
	return nil
}

const (
	routeWait = 5 * time.Second
	routePoll = 50 * time.Microsecond
)

func (d *Dummy) routed(a netip.Addr) bool {
	routes, err := d.handle.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Remove takes an address from the link.
func (d *Dummy) Remove(a netip.Addr) error {
	if err := d.handle.AddrDel(d.link, address(a)); err != nil {
		return fmt.Errorf("remove %v from link %s: %w", a, d.name, err)
	}
	return nil
}

// Close releases the socket.
func (d *Dummy) Close() error {
	d.handle.Close()
	return nil
}

// address is that of one host, in use at once: there are no neighbours to ask.
// One of IPv6 is deprecated from the beginning, so that no connection to another
// host is made from it.
func address(a netip.Addr) *netlink.Addr {
	out := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
	if a.Is6() {
		out.ValidLft = math.MaxUint32 // for ever
	}
	return out
}
