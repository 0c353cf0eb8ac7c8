package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Origin is where a connection comes from, as far as policy can tell.
type Origin uint8

const (
	Elsewhere Origin = iota // outside clients, other nodes, pods the detector does not recognise
	OurPod                  // recognised by the LocalTrafficDetector
	ThisNode                // the node's own stack
)

var Origins = [...]Origin{Elsewhere, OurPod, ThisNode}

func (o Origin) String() string { return [...]string{"elsewhere", "our pod", "this node"}[o] }

// Node is this node as policy sees it: what it is called, which of its
// addresses matter, and the settings that hold for all its traffic. It is
// immutable once published.
type Node struct {
	Name          string
	Zone          string
	IPs           []netip.Addr         // at most one of each family, the primary family first
	LocalPods     LocalTrafficDetector // which traffic is our pods'
	MasqueradeAll bool                 // masquerade all ClusterIP traffic
	NodePorts     []netip.Prefix       // the node's addresses within these take NodePorts; none within another

	LocalhostNodePorts bool // IPv4 loopback addresses within NodePorts take them too
}

// Origin classifies a packet. A source that is both a pod's and the node's own
// (the bridge's address inside the pod range) counts as a pod's.
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

// TakesNodePorts reports whether NodePorts are open on a local address.
func (n *Node) TakesNodePorts(a netip.Addr) bool {
	return Contains(n.NodePorts, a) && (!a.IsLoopback() || n.loopbackTakesNodePorts(FamilyOf(a)))
}

// loopbackTakesNodePorts: only if the node says so, that of IPv6 never.
func (n *Node) loopbackTakesNodePorts(f Family) bool { return f == IPv4 && n.LocalhostNodePorts }

// NodePortAddresses says which of the node's addresses of a family take
// NodePorts: those within, except some.
func (n *Node) NodePortAddresses(f Family) (within, except []netip.Prefix) {
	if !n.loopbackTakesNodePorts(f) {
		except = []netip.Prefix{f.Loopback()}
	}
	return PrefixesOf(n.NodePorts, f), except
}

// OpensLoopback reports whether any loopback address takes NodePorts.
func (n *Node) OpensLoopback() bool {
	return n.LocalhostNodePorts && slices.ContainsFunc(n.NodePorts, IPv4.Loopback().Overlaps)
}

// LocalTrafficDetector describes the traffic of our pods: by source address or
// by the interface it comes in on. The zero value detects nothing. It is a
// description; each dataplane translates it.
type LocalTrafficDetector struct {
	Sources   []netip.Prefix // a packet from one of these
	Interface string         // a packet that came in on this interface
	IsPrefix  bool           // Interface is the beginning of a name
}

// Detects reports whether pods of a family can be recognised at all.
func (d LocalTrafficDetector) Detects(f Family) bool {
	return d.Interface != "" || len(PrefixesOf(d.Sources, f)) > 0
}

// PrefixesOf returns the prefixes of one family, in their order.
func PrefixesOf(all []netip.Prefix, f Family) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return FamilyOf(p.Addr()) != f })
}

// Contains reports whether an address is in one of some prefixes.
func Contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Outermost returns the prefixes that lie within no other of them, masked and
// sorted: the same addresses in as few, disjoint prefixes as the list allows.
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

// WithinOutermost reports whether an address is in one of the prefixes, which are
// as [Outermost] returns them. There may be many.
func WithinOutermost(prefixes []netip.Prefix, a netip.Addr) bool {
	i, begins := slices.BinarySearchFunc(prefixes, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return begins || i > 0 && prefixes[i-1].Contains(a)
}
