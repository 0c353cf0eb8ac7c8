package lab

import (
	"cmp"
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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Host is one network namespace of a lab.
type Host struct {
	*traffic.Namespace
	Addrs []netip.Addr // of the pod or node

	nl       *netlink.Handle
	lo, eth0 netlink.Link
	bridge   netlink.Link     // the node's bridge that a pod is attached to
	mac      net.HardwareAddr // of its eth0
}

// gateways are the addresses that every host uses for its only neighbour. They are on no link;
// permanent neighbour entries resolve them.
var gateways = [...]netip.Addr{
	proxy.IPv4: netip.AddrFrom4([4]byte{169, 254, 1, 1}),
	proxy.IPv6: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1}),
}

// newHost creates an empty network namespace with predictable behaviour: no duplicate address
// detection, no reverse path filter, no rate limits for ICMP errors.
func newHost(name string, p *traffic.Ports) (*Host, error) {
	ns, err := traffic.New(name, p)
	if err != nil {
		return nil, err
	}
	h := &Host{Namespace: ns}
	if h.nl, err = netlink.NewHandleAt(ns.Handle, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), ns.Close())
	}
	err = h.sysctl(
		"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/default/rp_filter=0",
		"net/ipv4/conf/all/send_redirects=0", "net/ipv4/conf/default/send_redirects=0",
		"net/ipv4/icmp_ratemask=0",
		"net/ipv6/conf/all/disable_ipv6=0",
		"net/ipv6/conf/default/accept_dad=0",
		"net/ipv6/conf/default/accept_ra=0",
		"net/ipv6/conf/default/accept_redirects=0",
		"net/ipv6/icmp/ratemask=255",
	)
	if err == nil {
		h.lo, err = h.linkUp("lo")
	}
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *Host) close() error {
	h.nl.Close()
	return h.Namespace.Close()
}

// Bind adds addresses to the loopback link, as load-balancer addresses are on some nodes.
func (h *Host) Bind(addrs ...netip.Addr) error { return h.addAddrs(h.lo, addrs...) }

func (h *Host) Unbind(addrs ...netip.Addr) error { return h.removeAddrs(h.lo, addrs...) }

// Source returns the address that the kernel chooses for an unbound socket that sends to an
// address.
func (h *Host) Source(to netip.Addr) (netip.Addr, error) {
	routes, err := h.nl.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return netip.Addr{}, h.wrap(cmp.Or(err, fs.ErrNotExist), "look up the route to %v", to)
	}
	src, _ := netip.AddrFromSlice(routes[0].Src)
	return src.Unmap(), nil
}

func (h *Host) FlushConntrack() error {
	return h.wrap(h.nl.ConntrackTableFlush(netlink.ConntrackTable), "flush connections")
}

// wrap adds the host and the action to an error; nil stays nil.
func (h *Host) wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", h.Name, fmt.Sprintf(format, args...), err)
}

// enableForwarding makes the host a router. The parameter says whether its bridges pass packets to
// netfilter; those of a kernel without br_netfilter never do.
func (h *Host) enableForwarding(bridgeNetfilter bool) error {
	if err := h.sysctl("net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1"); err != nil {
		return err
	}
	value := map[bool]string{false: "=0", true: "=1"}[bridgeNetfilter]
	err := h.sysctl("net/bridge/bridge-nf-call-iptables"+value, "net/bridge/bridge-nf-call-ip6tables"+value)
	if errors.Is(err, fs.ErrNotExist) && !bridgeNetfilter {
		return nil
	}
	return err
}

// sysctl writes settings of the form "path=value".
func (h *Host) sysctl(settings ...string) error {
	return h.Do(func() error {
		for _, s := range settings {
			path, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil {
				return h.wrap(err, "set %s", path)
			}
		}
		return nil
	})
}

func (h *Host) linkUp(name string) (netlink.Link, error) {
	link, err := h.nl.LinkByName(name)
	if err == nil {
		err = h.nl.LinkSetUp(link)
	}
	return link, h.wrap(err, "set link %s up", name)
}

// addBridge adds a bridge with its own addresses.
func (h *Host) addBridge(name string, mac net.HardwareAddr, addrs []netip.Prefix) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac
	b := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: new(false)}
	if err := h.nl.LinkAdd(b); err != nil {
		return nil, h.wrap(err, "add bridge %s", name)
	}
	_, err := h.linkUp(name)
	return b, errors.Join(err, h.addPrefixes(b, addrs...))
}

// addVeth connects the host to the eth0 of another host and sets both ends up. This end becomes a
// port of the bridge, if one is given.
func (h *Host) addVeth(name string, mac net.HardwareAddr, bridge netlink.Link, peer *Host) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac
	if bridge != nil {
		attrs.MasterIndex = bridge.Attrs().Index
	}
	err := h.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0",
		PeerHardwareAddr: peer.mac, PeerNamespace: netlink.NsFd(peer.Handle),
	})
	if err != nil {
		return nil, h.wrap(err, "add link %s to %s", name, peer.Name)
	}
	link, err := h.linkUp(name)
	if err != nil {
		return nil, err
	}
	if peer.eth0, err = peer.linkUp("eth0"); err != nil {
		return nil, err
	}
	err = errors.Join(h.waitUp(name), peer.waitUp("eth0"))
	if bridge != nil {
		err = errors.Join(err, h.waitUp(bridge.Attrs().Name))
	}
	return link, err
}

// waitUp waits until a link carries packets: the kernel notices the carrier of a new link a little
// later, and drops what is sent before.
func (h *Host) waitUp(name string) error {
	return h.waitFor("the carrier of "+name, func() bool {
		link, err := h.nl.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp
	})
}

// waitFor polls until ready returns true, for up to 5 seconds.
func (h *Host) waitFor(what string, ready func() bool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(traffic.Scaled(5 * time.Second)); !ready(); <-tick.C {
		if time.Now().After(end) {
			return h.wrap(context.DeadlineExceeded, "wait for %s", what)
		}
	}
	return nil
}

// defaultRoutes routes everything to the neighbour behind eth0.
func (h *Host) defaultRoutes(mac net.HardwareAddr) error {
	var errs []error
	for _, f := range proxy.Families {
		errs = append(errs, h.addNeighbour(h.eth0, gateways[f], mac), h.addRoute(h.eth0, defaultDst(f), gateways[f]))
	}
	return errors.Join(errs...)
}

// defaultDst returns the destination of the default route.
func defaultDst(f proxy.Family) netip.Prefix { return netip.PrefixFrom(f.Unspecified(), 0) }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// bridgePrefixes returns the addresses of the bridge, with the subnet that pods share.
func (c Config) bridgePrefixes() []netip.Prefix {
	out := hostPrefixes(c.BridgeAddrs)
	for i, p := range out {
		if c.Bridged {
			out[i] = netip.PrefixFrom(p.Addr(), p.Bits()/4) // 10.0.0.0/8, fd00:10::/32
		}
	}
	return out
}

func hostPrefixes(addrs []netip.Addr) (out []netip.Prefix) {
	for _, a := range addrs {
		out = append(out, hostPrefix(a))
	}
	return out
}

// addRoute adds or replaces a route. An invalid gateway means that the destination is on the link.
func (h *Host) addRoute(link netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_LINK}
	if via.IsValid() {
		r.Gw, r.Flags, r.Scope = via.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
	}
	return h.wrap(h.nl.RouteReplace(r), "route %v over %s", to, link.Attrs().Name)
}

func (h *Host) removeRoute(link netlink.Link, to netip.Prefix) error {
	// RT_SCOPE_NOWHERE matches any scope.
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_NOWHERE}
	return h.wrap(h.nl.RouteDel(r), "remove route %v", to)
}

// SharesBridge reports whether two pods are on one bridge.
func (h *Host) SharesBridge(o *Host) bool { return h.bridge != nil && h.bridge == o.bridge }

// addDirectRoutes lets the host send to another one on the same link without a router.
func (h *Host) addDirectRoutes(o *Host) (err error) {
	for _, a := range o.Addrs {
		err = errors.Join(err, h.addNeighbour(h.eth0, a, o.mac), h.addRoute(h.eth0, hostPrefix(a), netip.Addr{}))
	}
	return err
}

// removeDirectRoutes undoes addDirectRoutes.
func (h *Host) removeDirectRoutes(o *Host) (err error) {
	for _, a := range o.Addrs {
		err = errors.Join(err, h.removeRoute(h.eth0, hostPrefix(a)))
	}
	return err
}

// addNeighbour adds a permanent neighbour entry, so that no ARP or NDP is needed.
func (h *Host) addNeighbour(link netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
	return h.wrap(h.nl.NeighSet(n), "set neighbour %v", a)
}

func (h *Host) addAddrs(link netlink.Link, addrs ...netip.Addr) error {
	return h.addPrefixes(link, hostPrefixes(addrs)...)
}

// addPrefixes adds addresses with their subnets. It adds no routes to the subnets: those to
// single pods lead there, so that others of the same subnet may be on other links.
func (h *Host) addPrefixes(link netlink.Link, prefixes ...netip.Prefix) error {
	var errs []error
	for _, p := range prefixes {
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NOPREFIXROUTE}
		if p.Addr().Is6() {
			addr.Flags |= unix.IFA_F_NODAD
		}
		errs = append(errs, h.wrap(h.nl.AddrReplace(link, addr), "add %v to %s", p, link.Attrs().Name))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// The kernel adds the local route of a new IPv6 address a little later, and only then receives
	// packets for it.
	for _, p := range prefixes {
		a := p.Addr()
		errs = append(errs, h.waitFor(a.String(), func() bool {
			routes, err := h.nl.RouteGet(a.AsSlice())
			return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
		}))
	}
	return errors.Join(errs...)
}

func (h *Host) removeAddrs(link netlink.Link, addrs ...netip.Addr) error {
	var errs []error
	for _, a := range addrs {
		err := h.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(hostPrefix(a))})
		errs = append(errs, h.wrap(err, "remove %v from %s", a, link.Attrs().Name))
	}
	return errors.Join(errs...)
}

// acceptAllAddrs makes every address local to packets that arrive on eth0. What the host itself
// sends still goes to the node, because the local table is not consulted for it.
func (h *Host) acceptAllAddrs() error {
	errs := []error{h.sysctl("net/ipv6/ip_nonlocal_bind=1")} // IPv4 needs only the local route
	for _, f := range proxy.Families {
		r := &netlink.Route{
			LinkIndex: h.lo.Attrs().Index, Dst: ipNet(defaultDst(f)),
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		rule := netlink.NewRule()
		rule.Family, rule.Table, rule.Priority = nl.GetIPFamily(f.Unspecified().AsSlice()), unix.RT_TABLE_LOCAL, 0
		errs = append(errs, h.wrap(h.nl.RouteReplace(r), "add local route"), h.wrap(h.nl.RuleDel(rule), "remove rule"))
		rule.IifName, rule.Priority = "eth0", 100
		errs = append(errs, h.wrap(h.nl.RuleAdd(rule), "add rule"))
	}
	return errors.Join(errs...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
