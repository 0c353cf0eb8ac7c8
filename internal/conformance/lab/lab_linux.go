package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"sluice/internal/conformance/traffic"
)

// Lab is one node, its pods, other nodes and the outside. Its methods are
// called by one goroutine at a time; those of its hosts by any.
type Lab struct {
	cfg     Config
	ports   *traffic.Ports
	node    *Host
	outside *Host
	cni0    netlink.Link
	transit netlink.Link
	remotes map[string]*Host // other nodes by name
	parked  []*Host          // pods without an address, to be used again
	hosts   []*Host
}

// attachment is how a host hangs on the node.
type attachment struct {
	bridge netlink.Link
	mac    net.HardwareAddr // the bridge's
}

// New makes a lab with a node and an outside and no pods.
func New(c Config) (*Lab, error) {
	l := &Lab{cfg: c.Default(), ports: &traffic.Ports{}, remotes: map[string]*Host{}}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() error {
	var err error
	if l.node, err = l.host("node"); err != nil {
		return err
	}
	l.node.Addrs = l.cfg.LocalAddrs()
	if err := l.node.forward(); err != nil {
		return err
	}
	if l.cni0, err = l.node.addBridge(Bridge, mac(1, 0), l.cfg.BridgeAddrs); err != nil {
		return err
	}
	if l.transit, err = l.node.addBridge(Transit, mac(2, 0), l.cfg.TransitAddrs); err != nil {
		return err
	}
	return l.buildOutside()
}

func (l *Lab) buildOutside() error {
	var err error
	if l.outside, err = l.host("outside"); err != nil {
		return err
	}
	eth0, err := l.node.plug(veth{name: Uplink, mac: mac(3, 0), peer: l.outside})
	if err != nil {
		return err
	}
	if err := l.node.addAddrs(eth0, l.cfg.NodeAddrs); err != nil {
		return err
	}
	for _, g := range gateways {
		if err := l.node.neighbour(eth0, g, l.outside.mac); err != nil {
			return err
		}
		if err := l.node.route(eth0, netip.PrefixFrom(g, 0).Masked(), g); err != nil {
			return err
		}
	}
	if err := l.outside.routeByNode(mac(3, 0)); err != nil {
		return err
	}
	return l.outside.answerForAll()
}

// host makes a host that Close will remove.
func (l *Lab) host(name string) (*Host, error) {
	h, err := newHost(name, l.ports)
	if err != nil {
		return nil, err
	}
	l.hosts = append(l.hosts, h)
	h.mac = mac(9, len(l.hosts))
	return h, nil
}

// mac returns an address that is unique within a lab.
func mac(kind byte, n int) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, kind, byte(n >> 8), byte(n)}
}

// Node is the host that the proxy under test runs on.
func (l *Lab) Node() *Host { return l.node }

// Outside is the node's default gateway. Any address may be spoken from there,
// and what the node sends to an address that is nowhere else arrives there.
func (l *Lab) Outside() *Host { return l.outside }

// AddPod adds a pod on this node.
func (l *Lab) AddPod(name string, addrs ...netip.Addr) (*Host, error) {
	h, err := l.unpark()
	if err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	h.Name = name
	for _, a := range addrs {
		if err := l.give(h, a); err != nil {
			return nil, fmt.Errorf("add pod %s: %w", name, err)
		}
	}
	// The kernel forgets a link's routes with its last address, so they are
	// written again for each pod.
	if err := h.routeByNode(h.onNode.mac); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	return h, nil
}

// give puts an address on a local pod and tells the node where it is.
func (l *Lab) give(h *Host, a netip.Addr) error {
	eth0, err := h.nl.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 of %s: %w", h.Name, err)
	}
	if err := h.addAddrs(eth0, []netip.Addr{a}); err != nil {
		return err
	}
	h.Addrs = append(h.Addrs, a)
	if err := l.node.neighbour(h.onNode.bridge, a, h.mac); err != nil {
		return err
	}
	return l.node.route(h.onNode.bridge, single(a), netip.Addr{})
}

// unpark returns a pod without addresses.
func (l *Lab) unpark() (*Host, error) {
	if n := len(l.parked); n > 0 {
		h := l.parked[n-1]
		l.parked = l.parked[:n-1]
		return h, nil
	}
	h, err := l.host("pod")
	if err != nil {
		return nil, err
	}
	h.onNode = &attachment{bridge: l.cni0, mac: mac(1, 0)}
	return h, l.attach(h)
}

// attach plugs a host into its bridge.
func (l *Lab) attach(h *Host) error {
	n := len(l.hosts)
	v := veth{name: fmt.Sprintf("veth%d", n), mac: mac(8, n), master: h.onNode.bridge, peer: h}
	if _, err := l.node.plug(v); err != nil {
		return err
	}
	return h.routeByNode(h.onNode.mac)
}

// RemovePod takes a local pod's addresses away. The host may serve as another
// pod later and must not be used any more.
func (l *Lab) RemovePod(h *Host) error {
	eth0, err := h.nl.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 of %s: %w", h.Name, err)
	}
	for _, a := range h.Addrs {
		if err := l.node.unroute(h.onNode.bridge, single(a)); err != nil {
			return err
		}
	}
	if err := h.delAddrs(eth0, h.Addrs); err != nil {
		return err
	}
	h.Addrs = nil
	l.parked = append(l.parked, h)
	return nil
}

// AddRemotePod adds a pod on another node, which is made if need be, and
// returns that node: its pods share one namespace.
func (l *Lab) AddRemotePod(node string, addrs ...netip.Addr) (*Host, error) {
	h, err := l.remote(node)
	if err != nil {
		return nil, fmt.Errorf("add node %s: %w", node, err)
	}
	for _, a := range addrs {
		if err := h.Bind(a); err != nil {
			return nil, err
		}
		h.Addrs = append(h.Addrs, a)
		if err := l.node.route(l.transit, single(a), l.hop(h, a.Is4())); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// remote returns another node by its name.
func (l *Lab) remote(name string) (*Host, error) {
	if h := l.remotes[name]; h != nil {
		return h, nil
	}
	h, err := l.host(name)
	if err != nil {
		return nil, err
	}
	h.onNode = &attachment{bridge: l.transit, mac: mac(2, 0)}
	if err := l.attach(h); err != nil {
		return nil, err
	}
	for _, is4 := range []bool{true, false} {
		if err := l.node.neighbour(l.transit, l.hop(h, is4), h.mac); err != nil {
			return nil, err
		}
	}
	l.remotes[name] = h
	return h, nil
}

// hop is the address by which the node's routes name another node.
func (l *Lab) hop(h *Host, is4 bool) netip.Addr {
	n := slices.Index(l.hosts, h)
	high, low := byte(1+n>>8), byte(n)
	if is4 {
		return netip.AddrFrom4([4]byte{100, 64, high, low})
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: high, 15: low})
}

// RemoveRemotePod takes one address away from another node.
func (l *Lab) RemoveRemotePod(h *Host, a netip.Addr) error {
	if err := l.node.unroute(l.transit, single(a)); err != nil {
		return err
	}
	h.Addrs = slices.DeleteFunc(h.Addrs, func(x netip.Addr) bool { return x == a })
	return h.Unbind(a)
}

// Close removes every namespace of the lab.
func (l *Lab) Close() error {
	var errs []error
	for _, h := range l.hosts {
		errs = append(errs, h.close())
	}
	l.hosts = nil
	return errors.Join(errs...)
}

// Refresh makes sure that many connections can be opened before a source port
// comes around again: the node forgets its connections when the ports run out.
func (l *Lab) Refresh() error {
	if !l.ports.Restart() {
		return nil
	}
	return l.node.FlushConntrack()
}
