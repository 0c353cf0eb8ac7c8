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

// clusterCIDRs are the pods' ranges, podCIDRs those of this node's pods.
func clusterCIDRs() []string { return []string{"10.0.0.0/8", "fd00:10::/64"} }
func podCIDRs() []string     { return []string{"10.0.0.0/24", "fd00:10::/80"} }
func serviceCIDRs() []string { return []string{"172.30.0.0/16", "fd00:172:30::/112"} }

// client returns the address that speaks when a case does not say.
func client(from Place, f proxy.Family) (netip.Addr, error) {
	var text [2]string
	switch from {
	case FromPod:
		text = [2]string{"10.0.0.2", "fd00:10::2"}
	case FromRemotePod:
		text = [2]string{"10.9.9.9", "fd00:10::9:0:0:9"}
	case FromNode:
		text = [2]string{"192.168.0.2", "2001:db8::1"}
	case FromLocalhost:
		text = [2]string{"127.0.0.1", "::1"}
	case FromOutside:
		text = [2]string{"203.0.113.2", "2600:5200::1"}
	case FromBlocked:
		text = [2]string{"203.0.113.130", "2600:5200:1::1"}
	default:
		return netip.Addr{}, fmt.Errorf("from %q needs a src", from)
	}
	return netip.ParseAddr(text[f])
}

// settings returns how the resolver is set up for a world in a mode.
func (c Config) settings(mode string) (resolve.Settings, error) {
	s := resolve.Settings{NodeName: nodeName, MasqueradeAll: c.MasqueradeAll}
	switch c.DetectLocal {
	case "", "cluster-cidr":
		for _, p := range clusterCIDRs() {
			s.ClusterCIDRs = append(s.ClusterCIDRs, netip.MustParsePrefix(p))
		}
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
	word := c.NodePortAddresses.Word
	if word == "" && mode == "nftables" {
		word = "primary"
	}
	s.LocalhostNodePorts = mode == "iptables"
	if c.LocalhostNodePort != nil {
		s.LocalhostNodePorts = *c.LocalhostNodePort
	}
	s.NodePortAddresses.CIDRs = c.NodePortAddresses.CIDRs
	s.NodePortAddresses.Primary = word == "primary" && s.NodePortAddresses.CIDRs == nil
	return s, nil
}

// node returns this node's object.
func node(labels map[string]string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}
	n.Spec.PodCIDRs = podCIDRs()
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	for _, a := range []string{"192.168.0.2", "2001:db8::1"} {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// serviceCIDR returns the object that holds the Services' ranges.
func serviceCIDR(cidrs []string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

// ranges returns the Services' ranges of a world.
func (w *World) ranges() []string {
	if w.Config.ServiceCIDRs != nil {
		return w.Config.ServiceCIDRs
	}
	return serviceCIDRs()
}

// local reports whether an address is the node's while a case is played.
func local(c *Case, a netip.Addr) bool {
	return slices.Contains(lab.Config{}.LocalAddrs(), a) || c.From == FromVIP && a == c.Src
}

// packet returns a case's first packet as the node sees it.
func packet(c *Case) proxy.Packet {
	p := proxy.Packet{
		Protocol: c.Proto.protocol(), Src: c.Src, Dst: c.to(),
		SrcLocal: local(c, c.Src), DstLocal: local(c, c.Dst),
	}
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
