package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
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

// New makes a lab with a node and an outside and no pods.
func New(c Config) (*Lab, error) {
	l := &Lab{cfg: c.Default(), ports: &traffic.Ports{}, remotes: map[string]*Host{}}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() (err error) {
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
	if l.outside, err = l.host("outside"); err != nil {
		return err
	}
	if l.node.eth0, err = l.node.plug(Uplink, mac(3, 0), nil, l.outside); err != nil {
		return err
	}
	return errors.Join(
		l.node.addAddrs(l.node.eth0, l.cfg.NodeAddrs...),
		l.node.defaultRoutes(l.outside.mac),
		l.outside.defaultRoutes(mac(3, 0)),
		l.outside.answerForAll(),
	)
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

// attach makes a host that hangs on one of the node's bridges.
func (l *Lab) attach(name string, bridge netlink.Link) (*Host, error) {
	h, err := l.host(name)
	if err != nil {
		return nil, err
	}
	n := len(l.hosts)
	_, err = l.node.plug(fmt.Sprintf("veth%d", n), mac(8, n), bridge, h)
	return h, err
}

// Node is the host that the proxy under test runs on.
func (l *Lab) Node() *Host { return l.node }

// Outside is the node's default gateway. Any address may be spoken from there,
// and what the node sends to an address that is nowhere else arrives there.
func (l *Lab) Outside() *Host { return l.outside }

// AddPod adds a pod on this node.
func (l *Lab) AddPod(name string, addrs ...netip.Addr) (h *Host, err error) {
	if n := len(l.parked); n > 0 {
		h, l.parked = l.parked[n-1], l.parked[:n-1]
	} else if h, err = l.attach("pod", l.cni0); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	h.Name, h.Addrs = name, slices.Clone(addrs)
	err = h.addAddrs(h.eth0, addrs...)
	for _, a := range addrs {
		err = errors.Join(err, l.node.neighbour(l.cni0, a, h.mac), l.node.route(l.cni0, single(a), netip.Addr{}))
	}
	// The kernel forgets a link's routes with its last address, so they are
	// written again for each pod.
	if err = errors.Join(err, h.defaultRoutes(mac(1, 0))); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	return h, nil
}

// RemovePod takes a local pod's addresses away. The host may serve as another
// pod later and must not be used any more.
func (l *Lab) RemovePod(h *Host) error {
	var errs []error
	for _, a := range h.Addrs {
		errs = append(errs, l.node.unroute(l.cni0, single(a)))
	}
	errs = append(errs, h.delAddrs(h.eth0, h.Addrs...))
	h.Addrs = nil
	l.parked = append(l.parked, h)
	return errors.Join(errs...)
}

// AddRemotePod adds a pod on another node, which is made if need be, and
// returns that node: its pods share one namespace.
func (l *Lab) AddRemotePod(node string, addrs ...netip.Addr) (*Host, error) {
	h, err := l.remote(node)
	if err != nil {
		return nil, fmt.Errorf("add node %s: %w", node, err)
	}
	h.Addrs = append(h.Addrs, addrs...)
	err = h.Bind(addrs...)
	for _, a := range addrs {
		err = errors.Join(err, l.node.route(l.transit, single(a), l.hop(h, proxy.FamilyOf(a))))
	}
	return h, err
}

// remote returns another node by its name.
func (l *Lab) remote(name string) (*Host, error) {
	if h := l.remotes[name]; h != nil {
		return h, nil
	}
	h, err := l.attach(name, l.transit)
	if err != nil {
		return nil, err
	}
	err = h.defaultRoutes(mac(2, 0))
	for _, f := range proxy.Families {
		err = errors.Join(err, l.node.neighbour(l.transit, l.hop(h, f), h.mac))
	}
	l.remotes[name] = h
	return h, err
}

// hop is the address by which the node's routes name another node.
func (l *Lab) hop(h *Host, f proxy.Family) netip.Addr {
	n := slices.Index(l.hosts, h)
	high, low := byte(1+n>>8), byte(n)
	if f == proxy.IPv4 {
		return netip.AddrFrom4([4]byte{100, 64, high, low})
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: high, 15: low})
}

// RemoveRemotePod takes one address away from another node.
func (l *Lab) RemoveRemotePod(h *Host, a netip.Addr) error {
	h.Addrs = slices.DeleteFunc(h.Addrs, func(x netip.Addr) bool { return x == a })
	return errors.Join(l.node.unroute(l.transit, single(a)), h.Unbind(a))
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

// Supports returns an error that says what the node's kernel lacks for sending
// a protocol through address translation, or nil. A kernel that has not
// started to track connections yet is taken to be able to.
func (l *Lab) Supports(p proxy.Protocol) error {
	if p != proxy.SCTP {
		return nil
	}
	return l.node.Do(func() error {
		const settings = "/proc/sys/net/netfilter/nf_conntrack_"
		if _, err := os.Stat(settings + "max"); err != nil {
			return nil
		}
		_, err := os.Stat(settings + "sctp_timeout_established")
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the kernel cannot track SCTP (CONFIG_NF_CT_PROTO_SCTP): %w", errors.ErrUnsupported)
		}
		return err
	})
}

// Test is what Require needs of a testing.TB. The lab is not for tests alone, so
// it does not import that package.
type Test interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Require ends a test that needs a lab where none can be made. It fails rather
// than skips: a kernel test that did not run has proven nothing.
func Require(tb Test) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatalf("the lab needs network namespaces: run as root, or under unshare -rn")
	}
	h, err := newHost("probe", &traffic.Ports{})
	if err != nil {
		tb.Fatalf("the lab needs network namespaces: %v", err)
	}
	if err := h.close(); err != nil {
		tb.Fatalf("remove network namespace: %v", err)
	}
}
