package proxy

import (
	"net/netip"
	"slices"
)

// Packet is the first packet of a connection, as it reaches or leaves this node.
type Packet struct {
	Protocol Protocol
	Src      netip.Addr
	Dst      netip.AddrPort
	In       string // the interface it came in on; empty when the node itself sent it
	SrcLocal bool   // Src is an address of this node
	DstLocal bool   // Dst is an address of this node
}

// Outcome is what must happen to a packet, and why.
type Outcome struct {
	Verdict  Verdict
	Reason   Reason
	Origin   Origin
	Backends []Backend    // where it may go, when Verdict is Forward
	Row      *ServicePort // the row that decided; nil if none did
	Frontend Frontend     // of the row, that the packet is for; the zero value if it is for none
	Route    Route        // that the row has for it; the zero value if the packet is for no frontend
}

// Reason is why a packet's verdict is what it is, as far as the state can tell.
type Reason uint8

const (
	NoSuchFrontend     Reason = iota // no row has the address and port
	Forwarded                        // the row has endpoints for it
	PortNotOfService                 // a row has the address as its ClusterIP, but not the port
	UnallocatedAddress               // the address is from the ranges of ClusterIPs, and no row has it
	NodePortClosedHere               // a row has the port, but the node's address takes no NodePorts
	SourceRange                      // the client is not let in
	NoEndpoints                      // no node has a usable endpoint
	NoLocalEndpoint                  // other nodes have some, and the policy wants one on this node
)

// String returns the reason as one word, which is stable.
func (r Reason) String() string {
	return [...]string{
		"NoSuchFrontend", "Forwarded", "PortNotOfService", "UnallocatedAddress",
		"NodePortClosedHere", "SourceRange", "NoEndpoints", "NoLocalEndpoint",
	}[r]
}

// Backend is one endpoint a packet may go to.
type Backend struct {
	Endpoint
	Masquerade bool // the endpoint does not see the client's address
}

// Outcome is the oracle: it answers by the rules alone, without a kernel. Its
// cost is linear in the number of rows.
func (s *State) Outcome(p Packet) Outcome {
	o := Outcome{Origin: s.Node.Origin(p)}
	row, f := s.claim(p)
	if row == nil {
		o.Verdict, o.Reason, o.Row = s.unclaimed(p)
		return o
	}
	r := row.route(f.Kind, o.Origin, s.Node)
	o.Row, o.Frontend, o.Route = row, f, r
	switch {
	case r.From != nil && !Contains(r.From, p.Src):
		o.Verdict, o.Reason = Drop, SourceRange
		return o
	case len(r.To) == 0:
		o.Verdict, o.Reason = r.Otherwise, NoEndpoints
		if row.UsableSomewhere {
			o.Reason = NoLocalEndpoint
		}
		return o
	}
	o.Verdict, o.Reason = Forward, Forwarded
	for _, e := range r.To {
		o.Backends = append(o.Backends, Backend{Endpoint: e, Masquerade: r.Masquerade || e.Hairpins(p.Src)})
	}
	return o
}

// Hairpins reports whether a client would be sent to itself. It must not see its
// own address as the client's.
func (e Endpoint) Hairpins(client netip.Addr) bool { return e.MayHairpin() && e.Addr.Addr() == client }

// MayHairpin reports whether traffic from the endpoint to itself can pass this node.
func (e Endpoint) MayHairpin() bool { return e.Local || e.NodeUnknown }

// claim finds the row whose frontend the packet is for. An exact address comes
// before a NodePort.
func (s *State) claim(p Packet) (*ServicePort, Frontend) {
	nodePort := p.DstLocal && s.Node.TakesNodePorts(p.Dst.Addr())
	var byPort *ServicePort
	var onNode Frontend
	for _, row := range s.Rows {
		if row.Key.Protocol != p.Protocol || row.Key.Family != FamilyOf(p.Dst.Addr()) {
			continue
		}
		for _, f := range row.Frontends {
			switch {
			case f.Addr == p.Dst:
				return row, f
			case f.Kind == NodePort && nodePort && f.Addr.Port() == p.Dst.Port():
				byPort, onNode = row, f
			}
		}
	}
	return byPort, onNode
}

// unclaimed answers for a packet to no frontend: other ports of a ClusterIP are
// refused, addresses nobody was given are silent, the rest is not ours. What comes
// in for an address of the node is the node's own matter; what the node sends is
// asked wherever it goes. The row is the one that it comes closest to.
func (s *State) unclaimed(p Packet) (Verdict, Reason, *ServicePort) {
	asked := !p.DstLocal || p.SrcLocal
	owner := s.first(func(_ *ServicePort, f Frontend) bool { return f.Kind == ClusterIP && f.Addr.Addr() == p.Dst.Addr() })
	closed := s.first(func(row *ServicePort, f Frontend) bool {
		return f.Kind == NodePort && f.Addr.Port() == p.Dst.Port() && row.Key.Protocol == p.Protocol && row.Key.Family == FamilyOf(p.Dst.Addr())
	})
	switch {
	case asked && owner != nil:
		return Reject, PortNotOfService, owner
	case asked && Contains(s.CIDRs, p.Dst.Addr()):
		return Drop, UnallocatedAddress, nil
	case p.DstLocal && closed != nil:
		return Untouched, NodePortClosedHere, closed
	default:
		return Untouched, NoSuchFrontend, nil
	}
}

// first returns the first row in order that has such a frontend.
func (s *State) first(matches func(*ServicePort, Frontend) bool) (first *ServicePort) {
	for _, row := range s.Rows {
		if first != nil && ComparePortKeys(first.Key, row.Key) < 0 {
			continue
		}
		if slices.ContainsFunc(row.Frontends, func(f Frontend) bool { return matches(row, f) }) {
			first = row
		}
	}
	return first
}
