package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Origin is where a connection comes from, as far as policy distinguishes it.
type Origin uint8

const (
	Elsewhere Origin = iota // clients outside, other nodes, and pods that the LocalTrafficDetector does not detect
	OurPod                  // a pod that the LocalTrafficDetector detects
	ThisNode                // the node's own network stack
)

var Origins = [...]Origin{Elsewhere, OurPod, ThisNode}

func (o Origin) String() string { return [...]string{"elsewhere", "our pod", "this node"}[o] }

// Node is what policy needs to know about this node: its name, its addresses, and the
// settings that apply to all its traffic. It is immutable once published.
type Node struct {
	Name          string
	Zone          string
	IPs           []netip.Addr         // at most one of each family, the primary family first
	LocalPods     LocalTrafficDetector // detects the traffic of this node's pods
	MasqueradeAll bool                 // masquerade all ClusterIP traffic
	NodePorts     []netip.Prefix       // node addresses in these ranges accept NodePorts; no range contains another

	LocalhostNodePorts bool // IPv4 loopback addresses in NodePorts accept NodePorts too
	RelaysLoopback     bool // this process relays NodePorts at ::1; for rules ::1 has none
	RefusesLoopback    bool // NodePorts at loopback addresses that are neither served nor relayed are refused
}

// Origin classifies a packet. A source address that is in the pod range and belongs
// to the node (such as the bridge's address) counts as a pod's.
func (n *Node) Origin(p Packet) Origin {
	d := n.LocalPods
	switch {
	case Contains(d.Sources, p.Src),
		d.Interface != "" && (p.In == d.Interface || d.IsPrefix && strings.HasPrefix(p.In, d.Interface)):
		return OurPod
	case p.SrcLocal:
		return ThisNode
	default:
		return Elsewhere
	}
}

// TakesNodePorts reports whether a local address accepts NodePorts.
func (n *Node) TakesNodePorts(a netip.Addr) bool {
	return Contains(n.NodePorts, a) && (!a.IsLoopback() || n.loopbackTakesNodePorts(FamilyOf(a)))
}

func (n *Node) loopbackTakesNodePorts(f Family) bool { return f == IPv4 && n.LocalhostNodePorts }

// Relays reports whether this process relays a protocol to NodePorts at an address.
func (n *Node) Relays(p Protocol, a netip.Addr) bool {
	return n.RelaysLoopback && a == netip.IPv6Loopback() && p != SCTP
}

// RefusesNodePorts reports whether NodePorts of a protocol are refused at a local address.
func (n *Node) RefusesNodePorts(p Protocol, a netip.Addr) bool {
	return n.RefusesLoopback && a.IsLoopback() && !n.TakesNodePorts(a) && !n.Relays(p, a)
}

// NodePortAddresses returns the ranges whose local addresses of a family accept
// NodePorts, and exceptions from them.
func (n *Node) NodePortAddresses(f Family) (within, except []netip.Prefix) {
	if !n.loopbackTakesNodePorts(f) {
		except = []netip.Prefix{f.Loopback()}
	}
	return PrefixesOf(n.NodePorts, f), except
}

// OpensLoopback reports whether any loopback address accepts NodePorts.
func (n *Node) OpensLoopback() bool {
	return n.LocalhostNodePorts && slices.ContainsFunc(n.NodePorts, IPv4.Loopback().Overlaps)
}

// LocalTrafficDetector describes the traffic of this node's pods, by source address
// or by incoming interface. The zero value detects nothing. It is only a description,
// which each dataplane translates.
type LocalTrafficDetector struct {
	Sources   []netip.Prefix // packets from these ranges are local
	Interface string         // packets that arrive on this interface are local
	IsPrefix  bool           // Interface is the prefix of interface names
}

// Detects reports whether the detector can detect pods of a family.
func (d LocalTrafficDetector) Detects(f Family) bool {
	return d.Interface != "" || len(PrefixesOf(d.Sources, f)) > 0
}

// PrefixesOf returns a new slice with the prefixes of one family, in the same order.
func PrefixesOf(all []netip.Prefix, f Family) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return FamilyOf(p.Addr()) != f })
}

// Contains reports whether an address is in one of the prefixes. Its cost is linear.
func Contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Outermost returns the prefixes that no other prefix contains, masked and sorted.
// They are disjoint and cover the same addresses.
func Outermost(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := sorted[:0]
	for _, p := range sorted {
		if n := len(out); n == 0 || !out[n-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// WithinOutermost reports whether an address is in one of the prefixes, which must be
// as [Outermost] returns them. Its cost is logarithmic.
func WithinOutermost(prefixes []netip.Prefix, a netip.Addr) bool {
	i, begins := slices.BinarySearchFunc(prefixes, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return begins || i > 0 && prefixes[i-1].Contains(a)
}
