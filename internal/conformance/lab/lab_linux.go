package lab

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Lab is a node, its pods, pods of other nodes, and the outside. Its methods must not be called
// concurrently; those of its hosts may be.
type Lab struct {
	cfg      Config
	ports    *traffic.Ports
	node     *Host
	outside  *Host
	cni0     netlink.Link
	transit  netlink.Link
	idlePods []*Host // removed pods, without addresses, for reuse
	hosts    []*Host
}

// New creates a lab with a node and the outside, without pods.
func New(c Config) (*Lab, error) {
	l := &Lab{cfg: c.Default(), ports: &traffic.Ports{}}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() (err error) {
	if l.node, err = l.addHost("node"); err != nil {
		return err
	}
	if l.outside, err = l.addHost("outside"); err != nil {
		return err
	}
	l.node.Addrs, l.node.Cgroup = l.cfg.LocalAddrs(), l.cfg.Cgroup
	if l.cni0, err = l.node.addBridge(Bridge, mac(1, 0), l.cfg.bridgePrefixes()); err != nil {
		return err
	}
	if l.transit, err = l.node.addBridge(Transit, mac(2, 0), hostPrefixes(l.cfg.TransitAddrs)); err != nil {
		return err
	}
	if l.node.eth0, err = l.node.addVeth(Uplink, mac(3, 0), nil, l.outside); err != nil {
		return err
	}
	return errors.Join(
		l.node.enableForwarding(l.cfg.BridgeNetfilter),
		l.node.addAddrs(l.node.eth0, l.cfg.NodeAddrs...),
		l.node.defaultRoutes(l.outside.mac),
		l.outside.defaultRoutes(mac(3, 0)),
		l.outside.acceptAllAddrs(),
	)
}

// addHost creates a host that Close will remove.
func (l *Lab) addHost(name string) (*Host, error) {
	h, err := newHost(name, l.ports)
	if err != nil {
		return nil, err
	}
	l.hosts = append(l.hosts, h)
	h.mac = mac(9, len(l.hosts))
	return h, nil
}

// mac returns a hardware address that is unique within the lab.
func mac(kind byte, n int) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, kind, byte(n >> 8), byte(n)}
}

// Node returns the host that the proxy under test runs on.
func (l *Lab) Node() *Host { return l.node }

// Outside returns the node's default gateway. It can send from any address, and receives what the
// node sends to addresses that no other host has.
func (l *Lab) Outside() *Host { return l.outside }

func (l *Lab) AddPod(name string, addrs ...netip.Addr) (*Host, error) {
	return l.addPod(l.cni0, name, addrs)
}

func (l *Lab) AddRemotePod(name string, addrs ...netip.Addr) (*Host, error) {
	return l.addPod(l.transit, name, addrs)
}

// addPod adds a pod behind a bridge of the node, which is its gateway.
func (l *Lab) addPod(bridge netlink.Link, name string, addrs []netip.Addr) (*Host, error) {
	h, err := l.podHost(bridge, addrs)
	if err == nil {
		h.Name, h.Addrs = name, slices.Clone(addrs)
		err = h.addAddrs(h.eth0, addrs...)
		for _, a := range addrs {
			err = errors.Join(err, l.node.addNeighbour(bridge, a, h.mac), l.node.addRoute(bridge, hostPrefix(a), netip.Addr{}))
		}
		// The kernel removes the routes of a link with its last address, so they are added again
		// for each pod.
		err = errors.Join(err, h.defaultRoutes(bridge.Attrs().HardwareAddr))
		for o := range l.bridgedTo(h) {
			err = errors.Join(err, h.addDirectRoutes(o), o.addDirectRoutes(h))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	return h, nil
}

// podHost returns a host without addresses behind a bridge, a reused one if possible. With a
// cgroup, only a host with the same former addresses is reused, because the dataplane may remember
// the pod by the socket's namespace.
func (l *Lab) podHost(bridge netlink.Link, addrs []netip.Addr) (*Host, error) {
	fits := func(h *Host) bool {
		return h.bridge == bridge && (h.Cgroup == "" || slices.Equal(h.Addrs, addrs))
	}
	if i := slices.IndexFunc(l.idlePods, fits); i >= 0 {
		h := l.idlePods[i]
		l.idlePods = slices.Delete(l.idlePods, i, i+1)
		return h, nil
	}
	h, err := l.addHost("pod")
	if err != nil {
		return nil, err
	}
	if h.bridge = bridge; bridge == l.cni0 {
		h.Cgroup = l.cfg.Cgroup
	}
	n := len(l.hosts)
	port, err := l.node.addVeth(fmt.Sprintf("veth%d", n), mac(8, n), bridge, h)
	if err == nil && l.cfg.Bridged { // so that a pod reaches itself through a Service
		err = l.node.wrap(l.node.nl.LinkSetHairpin(port, true), "set hairpin mode of %s", port.Attrs().Name)
	}
	return h, err
}

// bridgedTo yields the pods that a pod reaches without the node as a router.
func (l *Lab) bridgedTo(h *Host) iter.Seq[*Host] {
	return func(yield func(*Host) bool) {
		for _, o := range l.hosts {
			if l.cfg.Bridged && h.bridge == l.cni0 && h.SharesBridge(o) && o != h && !slices.Contains(l.idlePods, o) && !yield(o) {
				return
			}
		}
	}
}

// RemovePod removes the addresses and routes of a pod. The caller must not use the host any more; a
// later pod may reuse it.
func (l *Lab) RemovePod(h *Host) error {
	var errs []error
	for o := range l.bridgedTo(h) {
		errs = append(errs, h.removeDirectRoutes(o), o.removeDirectRoutes(h))
	}
	errs = append(errs, h.removeAddrs(h.eth0, h.Addrs...))
	for _, a := range h.Addrs {
		errs = append(errs, l.node.removeRoute(h.bridge, hostPrefix(a)))
	}
	l.idlePods = append(l.idlePods, h)
	return errors.Join(errs...)
}

func (l *Lab) Close() error {
	var errs []error
	for _, h := range l.hosts {
		errs = append(errs, h.close())
	}
	l.hosts = nil
	return errors.Join(errs...)
}

// Refresh ensures that many connections can be opened before a source port is used again. When the
// ports run out, they start again and the node's conntrack table is flushed.
func (l *Lab) Refresh() error {
	if !l.ports.Restart() {
		return nil
	}
	return l.node.FlushConntrack()
}

// Supports returns an error, which is ErrUntried, if the node's kernel cannot translate the
// addresses of a protocol. If the kernel tracks no connections yet, support is assumed.
func (l *Lab) Supports(p proxy.Protocol) error {
	if p != proxy.SCTP {
		return nil
	}
	return l.node.Do(func() error {
		const settings = "/proc/sys/net/netfilter/nf_conntrack_"
		_, idle := os.Stat(settings + "max")
		if _, err := os.Stat(settings + "sctp_timeout_established"); err == nil || idle != nil {
			return nil
		}
		return fmt.Errorf("the kernel cannot track SCTP, set CONFIG_NF_CT_PROTO_SCTP: %w", ErrUntried)
	})
}

// ErrUntried says that something cannot be tried on this machine. Unlike errors.ErrUnsupported, no
// errno of the kernel matches it.
var ErrUntried = errors.New("not tried")
