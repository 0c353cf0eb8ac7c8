package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
)

// underlay is the name of both ends of the link between nodes.
const underlay = "underlay"

// The addresses of the cluster. The last part of node n's addresses is 10+n.
var (
	serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	hubAddrs     = []netip.Addr{netip.MustParseAddr("192.168.60.2"), netip.MustParseAddr("fd00:60::2")}
)

// ClusterCIDR is the value of --cluster-cidr.
const ClusterCIDR = "10.244.0.0/16,fd00:244::/48"

// addresses are the addresses of one node.
type addresses struct {
	name     string
	node     []netip.Addr // to the outside
	underlay []netip.Addr // to the other nodes
	bridge   []netip.Addr // to its pods
	pods     []netip.Prefix
}

func addressesOf(n int) addresses {
	addr := func(format string, last int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, last)) }
	v4, v6 := addr("10.244.%d.0", n), addr("fd00:244:0:%x::", n)
	return addresses{
		name:     fmt.Sprintf("node-%d", n),
		node:     []netip.Addr{addr("192.168.50.%d", 10+n), addr("2001:db8:50::%d", 10+n)},
		underlay: []netip.Addr{addr("192.168.60.%d", 10+n), addr("fd00:60::%d", 10+n)},
		bridge:   []netip.Addr{v4.Next(), v6.Next()},
		pods:     []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)},
	}
}

// addUnderlay creates the bridge that the nodes are connected to.
func addUnderlay(hub *lab.Host) error {
	return hub.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = underlay
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add the underlay: %w", err)
		}
		if err := addAddrs(bridge, hubAddrs); err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	})
}

// connectToHub connects a node to the hub.
func connectToHub(hub, node *lab.Host, p addresses) error {
	var ns netns.NsHandle
	err := node.Do(func() error {
		var err error
		ns, err = netns.Get()
		return err
	})
	if err != nil {
		return fmt.Errorf("find the namespace of %s: %w", p.name, err)
	}
	defer ns.Close()
	err = hub.Do(func() error {
		bridge, err := netlink.LinkByName(underlay)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = "to-"+p.name, bridge.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: underlay, PeerNamespace: netlink.NsFd(ns)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		return fmt.Errorf("connect %s with the underlay: %w", p.name, err)
	}
	return node.Do(func() error {
		link, err := netlink.LinkByName(underlay)
		if err != nil {
			return fmt.Errorf("find the underlay: %w", err)
		}
		return errors.Join(addAddrs(link, p.underlay), netlink.LinkSetUp(link))
	})
}

// disconnectFromHub removes the link of a node, and its routes with it.
func disconnectFromHub(hub *lab.Host, p addresses) error {
	return hub.Do(func() error {
		link, err := netlink.LinkByName("to-" + p.name)
		if err != nil {
			return fmt.Errorf("find the link of %s: %w", p.name, err)
		}
		return netlink.LinkDel(link)
	})
}

// Answer makes a pod answer on ports of every address of an IPv4 prefix, as if it were many pods.
// Only its own node has a route to them.
func (p *Pod) Answer(prefix netip.Prefix, ports ...Port) error {
	if err := p.listen(netip.IPv4Unspecified(), ports...); err != nil {
		return err
	}
	err := p.Host.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: ipNet(prefix), Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		})
	})
	if err != nil {
		return fmt.Errorf("answer for %v in %s: %w", prefix, p.Name, err)
	}
	err = p.Node.Host.Do(func() error {
		bridge, err := netlink.LinkByName(lab.Bridge)
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: bridge.Attrs().Index, Dst: ipNet(prefix), Gw: p.Addrs[0].AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
	})
	if err != nil {
		return fmt.Errorf("route %v to %s: %w", prefix, p.Name, err)
	}
	return nil
}

// addRoutes adds routes to a node and its pods.
func addRoutes(from *lab.Host, p addresses) error {
	return from.Do(func() error {
		link, err := netlink.LinkByName(underlay)
		if err != nil {
			return fmt.Errorf("find the underlay: %w", err)
		}
		for i, via := range p.underlay {
			for _, to := range []netip.Prefix{p.pods[i], netip.PrefixFrom(p.node[i], p.node[i].BitLen())} {
				r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: via.AsSlice()}
				if err := netlink.RouteReplace(r); err != nil {
					return fmt.Errorf("route %v over %v: %w", to, via, err)
				}
			}
		}
		return nil
	})
}

// addAddrs adds addresses to a link, with the prefix of the link's network.
func addAddrs(link netlink.Link, addrs []netip.Addr) error {
	for _, a := range addrs {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, bits))}); err != nil {
			return fmt.Errorf("add %v to %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
