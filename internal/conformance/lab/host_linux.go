package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
)

// Host is one network namespace of a lab.
type Host struct {
	*traffic.Namespace
	Addrs []netip.Addr // the addresses it was given, without those of its links

	nl     *netlink.Handle
	mac    net.HardwareAddr // of its eth0; the node's hosts see it as this
	onNode *attachment      // nil for the node and the outside
}

// newHost makes an empty network namespace.
func newHost(name string, p *traffic.Ports) (*Host, error) {
	ns, err := traffic.New(name, p)
	if err != nil {
		return nil, err
	}
	h := &Host{Namespace: ns}
	if h.nl, err = netlink.NewHandleAt(ns.Handle, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), ns.Close())
	}
	if err := h.quiet(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *Host) close() error {
	h.nl.Close()
	return h.Namespace.Close()
}

// Bind puts addresses on the host's loopback link, as a load balancer's
// addresses are on some nodes.
func (h *Host) Bind(addrs ...netip.Addr) error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	return h.addAddrs(lo, addrs)
}

// Unbind takes away what Bind put there.
func (h *Host) Unbind(addrs ...netip.Addr) error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	return h.delAddrs(lo, addrs)
}

// Has reports whether an address was given to the host.
func (h *Host) Has(a netip.Addr) bool { return slices.Contains(h.Addrs, a) }

// FlushConntrack forgets every connection that the host tracks.
func (h *Host) FlushConntrack() error {
	if err := h.nl.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("flush connections of %s: %w", h.Name, err)
	}
	return nil
}
