package apiobject

import (
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Node has the parts of a Node that are used.
type Node struct {
	IPs      []netip.Addr // all internal ones, then all external ones
	PodCIDRs []netip.Prefix
	Zone     string
}

// ParseNode parses a Node from an API server.
func ParseNode(obj *v1.Node) (Node, []Problem) {
	p := parser{}
	return p.node(obj), p.problems
}

func (p *parser) node(obj *v1.Node) Node {
	n := Node{Zone: strings.Clone(obj.Labels[v1.LabelTopologyZone])}
	for _, t := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, a := range obj.Status.Addresses {
			if a.Type != t {
				continue
			}
			addr, err := p.parseAddr(a.Address)
			if err != nil {
				p.add(Omitted, path{"status.addresses", i, ".address"}, "%v; it is left out", err)
				continue
			}
			n.IPs = append(n.IPs, addr.Unmap())
		}
	}
	cidrs := obj.Spec.PodCIDRs
	if len(cidrs) == 0 && obj.Spec.PodCIDR != "" {
		cidrs = []string{obj.Spec.PodCIDR}
	}
	n.PodCIDRs, _ = p.ranges("spec.podCIDRs", cidrs)
	return n
}

// ParseServiceCIDR parses a ServiceCIDR from an API server.
func ParseServiceCIDR(obj *networkingv1.ServiceCIDR) ([]netip.Prefix, []Problem) {
	p := parser{}
	return p.serviceCIDR(obj), p.problems
}

func (p *parser) serviceCIDR(obj *networkingv1.ServiceCIDR) []netip.Prefix {
	if len(obj.Spec.CIDRs) == 0 {
		p.note(field("spec.cidrs"), "is empty")
	}
	for i, text := range obj.Spec.CIDRs {
		if prefix, err := netip.ParsePrefix(text); p.strict && err == nil && prefix != prefix.Masked() {
			p.add(Invalid, path{"spec.cidrs", i, ""}, "%v is an address in a range; write the range %v", prefix, prefix.Masked())
		}
	}
	ranges, _ := p.ranges("spec.cidrs", obj.Spec.CIDRs)
	return ranges
}
