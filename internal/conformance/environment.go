package conformance

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// nodeName is this node. The addresses below and those of the lab are the
// world that all cases share.
const nodeName = "test-node"

// The mode whose behaviour the oracle describes.
const oracleMode = "nftables"

// The ranges of all pods, of this node's pods, and of Services.
var (
	clusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/64")}
	podCIDRs     = []string{"10.0.0.0/24", "fd00:10::/80"}
	serviceCIDRs = []string{"172.30.0.0/16", "fd00:172:30::/112"}
)

// clients are the addresses that speak when a case does not say, by family.
var clients = map[Place][2]string{
	FromPod:       {"10.0.0.2", "fd00:10::2"},
	FromRemotePod: {"10.9.9.9", "fd00:10::9:0:0:9"},
	FromNode:      {"192.168.0.2", "2001:db8::1"},
	FromLocalhost: {"127.0.0.1", "::1"},
	FromOutside:   {"203.0.113.2", "2600:5200::1"},
	FromBlocked:   {"203.0.113.130", "2600:5200:1::1"},
}

func client(from Place, f proxy.Family) (netip.Addr, error) {
	a, ok := clients[from]
	if !ok {
		return netip.Addr{}, fmt.Errorf("from %q needs a src", from)
	}
	return netip.ParseAddr(a[f])
}

// settings returns how the resolver is set up for a world in a mode.
func (c Config) settings(mode string) (resolve.Settings, error) {
	s := resolve.Settings{NodeName: nodeName, MasqueradeAll: c.MasqueradeAll, LocalhostNodePorts: mode == "iptables"}
	switch c.DetectLocal {
	case "", "cluster-cidr":
		s.ClusterCIDRs = clusterCIDRs
	case "node-cidr":
		s.DetectLocal = resolve.DetectNodeCIDR
	case "bridge":
		s.DetectLocal, s.Interface = resolve.DetectBridgeInterface, lab.Bridge
	case "prefix":
		s.DetectLocal, s.Interface = resolve.DetectInterfaceNamePrefix, lab.Bridge[:2]
	case "none":
		s.DetectLocal = resolve.DetectNone
	default:
		return s, fmt.Errorf("detect_local is %q", c.DetectLocal)
	}
	if c.LocalhostNodePort != nil {
		s.LocalhostNodePorts = *c.LocalhostNodePort
	}
	s.NodePortAddresses.Primary = mode == "nftables"
	for _, word := range c.NodePortAddresses {
		s.NodePortAddresses.Primary = word == "primary"
		if word == "primary" || word == "all" {
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return s, fmt.Errorf("nodeport_addresses is %q, not primary, all or a list of CIDRs", word)
		}
		s.NodePortAddresses.CIDRs = append(s.NodePortAddresses.CIDRs, p)
	}
	return s, nil
}

// node returns this node's object.
func node(labels map[string]string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}
	n.Spec.PodCIDRs, n.Spec.PodCIDR = podCIDRs, podCIDRs[0]
	for _, a := range clients[FromNode] {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// ranges returns the Services' ranges of a world.
func (w *World) ranges() *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	c.Spec.CIDRs = w.Config.ServiceCIDRs
	if c.Spec.CIDRs == nil {
		c.Spec.CIDRs = serviceCIDRs
	}
	return c
}

// packet returns a case's first packet as the node sees it.
func packet(c *Case) proxy.Packet {
	// Addresses of the node while the case is played.
	local := func(a netip.Addr) bool {
		return slices.Contains(lab.Config{}.LocalAddrs(), a) || c.From == FromVIP && a == c.Src
	}
	p := proxy.Packet{Protocol: c.protocol(), Src: c.Src, Dst: c.to(), SrcLocal: local(c.Src), DstLocal: local(c.Dst)}
	switch {
	case c.From.onPod():
		p.In = lab.Bridge
	case c.From == FromRemotePod:
		p.In = lab.Transit
	case c.From.outside():
		p.In = lab.Uplink
	}
	return p
}
