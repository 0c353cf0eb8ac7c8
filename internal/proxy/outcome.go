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
	In       string // the incoming interface; empty if the node itself sent the packet
	SrcLocal bool   // Src is an address of this node
	DstLocal bool   // Dst is an address of this node
}

// Outcome is what must happen to a packet, and why.
type Outcome struct {
	Verdict  Verdict
	Reason   Reason
	Origin   Origin
	Backends []Backend    // the possible destinations if Verdict is Forward
	Row      *ServicePort // the row that decided; nil if none did
	Frontend Frontend     // the frontend of the row that the packet is for; the zero value if none
	Route    Route        // the row's route for the packet; the zero value without a frontend
}

// Reason is why a packet gets its verdict, as far as the state determines it.
type Reason uint8

const (
	NoSuchFrontend     Reason = iota // no row has the address and port
	Forwarded                        // the row has endpoints for it
	PortNotOfService                 // the address is the ClusterIP of a row, but no row has the port
	UnallocatedAddress               // the address is in a range of ClusterIPs, and no row has it
	NodePortClosedHere               // a row has the port, but the node's address accepts no NodePorts
	SourceRange                      // the client is not in the Service's source ranges
	NoEndpoints                      // no node has a usable endpoint
	NoLocalEndpoint                  // only other nodes have usable endpoints, and the policy requires one on this node
)

// String returns the reason as one word. Programs may rely on it.
func (r Reason) String() string {
	return [...]string{
		"NoSuchFrontend", "Forwarded", "PortNotOfService", "UnallocatedAddress",
		"NodePortClosedHere", "SourceRange", "NoEndpoints", "NoLocalEndpoint",
	}[r]
}

// Backend is one endpoint that a packet may be forwarded to.
type Backend struct {
	Endpoint
	Masquerade bool // the endpoint does not see the client's address
}

// Outcome is the oracle: it computes what must happen to a packet from the state
// alone. Its cost is linear in the number of rows.
func (s *State) Outcome(p Packet) Outcome {
	o := Outcome{Origin: s.Node.Origin(p)}
	row, f := s.find(p)
	if row == nil {
		o.Verdict, o.Reason, o.Row = s.noFrontend(p)
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

// Hairpins reports whether the endpoint is the client itself. Such a connection has to
// be masqueraded: a pod drops packets that seem to come from itself.
func (e Endpoint) Hairpins(client netip.Addr) bool { return e.MayHairpin() && e.Addr.Addr() == client }

// MayHairpin reports whether traffic from the endpoint to itself can pass this node.
func (e Endpoint) MayHairpin() bool { return e.Local || e.NodeUnknown }

// find returns the row and its frontend that the packet is for. A frontend with the
// packet's address has precedence over a NodePort.
func (s *State) find(p Packet) (*ServicePort, Frontend) {
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

// noFrontend decides about a packet to no frontend. Other ports of a ClusterIP are
// rejected, unallocated ClusterIPs dropped, and everything else is untouched. Packets
// that arrive for an address of the node are never filtered, those that the node sends
// always are. The row is the one that nearly matches, or nil.
func (s *State) noFrontend(p Packet) (Verdict, Reason, *ServicePort) {
	filtered := !p.DstLocal || p.SrcLocal
	owner := s.first(func(_ *ServicePort, f Frontend) bool { return f.Kind == ClusterIP && f.Addr.Addr() == p.Dst.Addr() })
	closed := s.first(func(row *ServicePort, f Frontend) bool {
		return f.Kind == NodePort && f.Addr.Port() == p.Dst.Port() && row.Key.Protocol == p.Protocol && row.Key.Family == FamilyOf(p.Dst.Addr())
	})
	switch {
	case filtered && owner != nil:
		return Reject, PortNotOfService, owner
	case filtered && Contains(s.CIDRs, p.Dst.Addr()):
		return Drop, UnallocatedAddress, nil
	case p.DstLocal && closed != nil && p.SrcLocal && s.Node.RefusesNodePorts(p.Protocol, p.Dst.Addr()):
		return Reject, NodePortClosedHere, closed
	case p.DstLocal && closed != nil:
		return Untouched, NodePortClosedHere, closed
	default:
		return Untouched, NoSuchFrontend, nil
	}
}

// first returns the row with the smallest key that has a matching frontend, or nil.
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
