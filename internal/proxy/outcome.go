package proxy

import "net/netip"

// Packet is the first packet of a connection, as it reaches or leaves this node.
type Packet struct {
	Protocol Protocol
	Src      netip.Addr
	Dst      netip.AddrPort
	In       string // the interface it came in on; empty when the node itself sent it
	SrcLocal bool   // Src is an address of this node
	DstLocal bool   // Dst is an address of this node
}

// Outcome is what must happen to a packet.
type Outcome struct {
	Verdict  Verdict
	Backends []Backend    // where it may go, when Verdict is Forward
	Row      *ServicePort // the row that decided; nil if none did
}

// Backend is one endpoint a packet may go to.
type Backend struct {
	Endpoint
	Masquerade bool // the endpoint does not see the client's address
}

// Outcome is the oracle: it answers by the rules alone, without a kernel. Its
// cost is linear in the number of rows.
func (s *State) Outcome(p Packet) Outcome {
	row, kind := s.claim(p)
	if row == nil {
		return s.unclaimed(p)
	}
	r := row.route(kind, s.Node.Origin(p), s.Node)
	if r.From != nil && !contains(r.From, p.Src) {
		return Outcome{Verdict: Drop, Row: row}
	}
	if len(r.To) == 0 {
		return Outcome{Verdict: r.Otherwise, Row: row}
	}
	o := Outcome{Verdict: Forward, Row: row}
	for _, e := range r.To {
		hairpin := e.MayHairpin() && e.Addr.Addr() == p.Src // A client must not see its own address as the client's.
		o.Backends = append(o.Backends, Backend{Endpoint: e, Masquerade: r.Masquerade || hairpin})
	}
	return o
}

// MayHairpin reports whether traffic from the endpoint to itself can pass this node.
func (e Endpoint) MayHairpin() bool { return e.Local || e.NodeUnknown }

// claim finds the row whose frontend the packet is for. An exact address comes
// before a NodePort.
func (s *State) claim(p Packet) (*ServicePort, Kind) {
	nodePort := p.DstLocal && s.Node.TakesNodePorts(p.Dst.Addr())
	var byPort *ServicePort
	for _, row := range s.Rows {
		if row.Key.Protocol != p.Protocol || row.Key.Family != FamilyOf(p.Dst.Addr()) {
			continue
		}
		for _, f := range row.Frontends {
			switch {
			case f.Addr == p.Dst:
				return row, f.Kind
			case f.Kind == NodePort && nodePort && f.Addr.Port() == p.Dst.Port():
				byPort = row
			}
		}
	}
	return byPort, NodePort
}

// unclaimed answers for a packet to no frontend: other ports of a ClusterIP are
// refused, addresses nobody was given are silent, the rest is not ours.
func (s *State) unclaimed(p Packet) Outcome {
	if p.DstLocal {
		return Outcome{}
	}
	for _, row := range s.Rows {
		for _, f := range row.Frontends {
			if f.Kind == ClusterIP && f.Addr.Addr() == p.Dst.Addr() {
				return Outcome{Verdict: Reject, Row: row}
			}
		}
	}
	if contains(s.CIDRs, p.Dst.Addr()) {
		return Outcome{Verdict: Drop}
	}
	return Outcome{}
}
