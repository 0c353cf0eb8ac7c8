package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// gateways are the addresses under which every host knows the node. They are
// on no link: a permanent neighbour entry says where they are.
var gateways = [...]netip.Addr{
	proxy.IPv4: netip.AddrFrom4([4]byte{169, 254, 1, 1}),
	proxy.IPv6: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1}),
}

// quiet makes the namespace predictable: no address detection, no filtering by
// reverse path, no limits on the errors it sends.
func (h *Host) quiet() error {
	err := h.sysctl(
		"net/ipv4/conf/all/rp_filter=0",
		"net/ipv4/conf/default/rp_filter=0",
		"net/ipv4/conf/all/send_redirects=0",
		"net/ipv4/conf/default/send_redirects=0",
		"net/ipv4/conf/all/accept_redirects=0",
		"net/ipv4/icmp_ratemask=0",
		"net/ipv4/icmp_ratelimit=0",
		"net/ipv6/conf/all/disable_ipv6=0",
		"net/ipv6/conf/default/accept_dad=0",
		"net/ipv6/conf/default/accept_ra=0",
		"net/ipv6/conf/default/accept_redirects=0",
		"net/ipv6/conf/default/router_solicitations=0",
		"net/ipv6/icmp/ratelimit=0",
		"net/ipv6/icmp/ratemask=255",
	)
	if err != nil {
		return err
	}
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	return h.nl.LinkSetUp(lo)
}

// forward makes the host a router. A bridge that is looked into by the
// firewall would show it each packet twice.
func (h *Host) forward() error {
	err := h.sysctl("net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1")
	if err != nil {
		return err
	}
	err = h.sysctl("net/bridge/bridge-nf-call-iptables=0", "net/bridge/bridge-nf-call-ip6tables=0")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel cannot do it anyway
	}
	return err
}

// sysctl writes settings of the form "path=value".
func (h *Host) sysctl(settings ...string) error {
	return h.Do(func() error {
		for _, s := range settings {
			path, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil {
				return fmt.Errorf("set %s of %s: %w", path, h.Name, err)
			}
		}
		return nil
	})
}

// addBridge makes a bridge with addresses of its own.
func (h *Host) addBridge(name string, mac net.HardwareAddr, addrs []netip.Addr) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac
	snooping := false
	b := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := h.nl.LinkAdd(b); err != nil {
		return nil, fmt.Errorf("add bridge %s: %w", name, err)
	}
	if err := h.nl.LinkSetUp(b); err != nil {
		return nil, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return b, h.addAddrs(b, addrs)
}

// veth is a cable between two hosts; the peer's end is always eth0.
type veth struct {
	name   string
	mac    net.HardwareAddr
	master netlink.Link // nil: none
	peer   *Host
}

// plug lays a cable and sets both ends up.
func (h *Host) plug(v veth) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = v.name, v.mac
	if v.master != nil {
		attrs.MasterIndex = v.master.Attrs().Index
	}
	link := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0",
		PeerHardwareAddr: v.peer.mac, PeerNamespace: netlink.NsFd(v.peer.Handle),
	}
	if err := h.nl.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("add link %s to %s: %w", v.name, v.peer.Name, err)
	}
	if err := h.nl.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set link %s up: %w", v.name, err)
	}
	eth0, err := v.peer.nl.LinkByName("eth0")
	if err != nil {
		return nil, fmt.Errorf("find eth0 of %s: %w", v.peer.Name, err)
	}
	if err := v.peer.nl.LinkSetUp(eth0); err != nil {
		return nil, fmt.Errorf("set eth0 of %s up: %w", v.peer.Name, err)
	}
	up := []error{h.waitUp(v.name), v.peer.waitUp("eth0")}
	if v.master != nil {
		up = append(up, h.waitUp(v.master.Attrs().Name))
	}
	return link, errors.Join(up...)
}

// waitUp waits until a link carries packets: the kernel notices the carrier of
// a new cable a little later, and drops what is sent before.
func (h *Host) waitUp(name string) error {
	err := await(func() (bool, error) {
		link, err := h.nl.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil {
		return fmt.Errorf("wait for the carrier of %s of %s: %w", name, h.Name, err)
	}
	return nil
}

// waitLocal waits until an address receives packets: the kernel makes the
// route of a new IPv6 address a little later.
func (h *Host) waitLocal(a netip.Addr) error {
	err := await(func() (bool, error) {
		routes, err := h.nl.RouteGet(a.AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %v of %s: %w", a, h.Name, err)
	}
	return nil
}

// await asks until the answer is yes, for some seconds.
func await(ready func() (bool, error)) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 5000 {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		<-tick.C
	}
	return context.DeadlineExceeded
}

// routeByNode sends everything the host has to say to the node.
func (h *Host) routeByNode(mac net.HardwareAddr) error {
	eth0, err := h.nl.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 of %s: %w", h.Name, err)
	}
	for _, f := range proxy.Families {
		if err := h.neighbour(eth0, gateways[f], mac); err != nil {
			return err
		}
		if err := h.route(eth0, everything(f), gateways[f]); err != nil {
			return err
		}
	}
	return nil
}

// everything is the default route's destination.
func everything(f proxy.Family) netip.Prefix { return netip.PrefixFrom(f.Unspecified(), 0) }

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// route adds or replaces a route; an invalid gateway means that the
// destination is on the link.
func (h *Host) route(link netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_LINK}
	if via.IsValid() {
		r.Gw, r.Flags, r.Scope = via.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
	}
	if err := h.nl.RouteReplace(r); err != nil {
		return fmt.Errorf("route %v of %s over %s: %w", to, h.Name, link.Attrs().Name, err)
	}
	return nil
}

func (h *Host) unroute(link netlink.Link, to netip.Prefix) error {
	// The scope NOWHERE stands for any.
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_NOWHERE}
	err := h.nl.RouteDel(r)
	if err != nil {
		return fmt.Errorf("remove route %v of %s: %w", to, h.Name, err)
	}
	return nil
}

// neighbour says where an address is, so that nobody has to ask.
func (h *Host) neighbour(link netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	n := &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: af(a), State: netlink.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: mac,
	}
	if err := h.nl.NeighSet(n); err != nil {
		return fmt.Errorf("set neighbour %v of %s: %w", a, h.Name, err)
	}
	return nil
}

func (h *Host) addAddrs(link netlink.Link, addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := h.nl.AddrReplace(link, address(a)); err != nil {
			return fmt.Errorf("add %v to %s of %s: %w", a, link.Attrs().Name, h.Name, err)
		}
	}
	for _, a := range addrs {
		if err := h.waitLocal(a); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) delAddrs(link netlink.Link, addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := h.nl.AddrDel(link, address(a)); err != nil {
			return fmt.Errorf("remove %v from %s of %s: %w", a, link.Attrs().Name, h.Name, err)
		}
	}
	return nil
}

func address(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(single(a))}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// answerForAll makes the host take what comes in for any address, while what
// it sends itself still goes to the node: hence the rule by interface.
func (h *Host) answerForAll() error {
	const table = 100
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	for _, f := range proxy.Families {
		r := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: ipNet(everything(f)),
			Table: table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		if err := h.nl.RouteReplace(r); err != nil {
			return fmt.Errorf("add local route of %s: %w", h.Name, err)
		}
		rule := netlink.NewRule()
		rule.Family, rule.Table, rule.IifName, rule.Priority = af(f.Unspecified()), table, "eth0", 100
		if err := h.nl.RuleAdd(rule); err != nil {
			return fmt.Errorf("add rule of %s: %w", h.Name, err)
		}
	}
	h.Transparent = true
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func af(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
