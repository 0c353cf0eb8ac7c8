package netfilter

import "net/netip"

// Hook is a point of a packet's path, with the kernel's number.
type Hook uint32

// The hooks in the kernel's order (NF_INET_PRE_ROUTING and so on).
const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// Loopback is the link by which a host sends to itself.
const Loopback = "lo"

// Verdict is what becomes of a packet.
type Verdict uint8

const (
	Accept Verdict = iota
	Drop
	Reject
)

// Packet is the first packet of a connection, as the rules see and change it.
type Packet struct {
	Protocol uint8
	Src      netip.Addr
	Dst      netip.AddrPort
	In       string // the incoming link; empty if the node itself sends the packet
	Mark     uint32
	FlowMark uint32 // of the connection
	Priority uint32

	Node        *Node          // that handles the packet
	Original    netip.AddrPort // the destination that the client used
	DNAT        bool           // the destination is decided: no other chain of type nat changes it
	Masqueraded bool           // the client's address is replaced
	Socket      netip.AddrPort // the listener that gets the packet; zero: none

	// Remembered has what rules stored while they handled the packet, by set and key.
	Remembered map[[2]string]string
}

// Translated reports whether the destination was changed.
func (p *Packet) Translated() bool { return p.Dst != p.Original }

// Choose returns a number below n where rules choose at random.
type Choose func(n uint32) uint32

// Rules are what a node runs at its hooks. NAT says whether chains of type nat run: the kernel
// skips them if the connection has passed a hook that decides about the same translation.
type Rules interface {
	Run(h Hook, nat bool, p *Packet, choose Choose) Verdict
}

// Node is a node with rules.
type Node struct {
	Rules   Rules
	IsLocal func(netip.Addr) bool

	// SocketMark is the bit of the mark that routes packets to this node, whatever their
	// destination.
	SocketMark uint32

	// Deliver is called with a packet for this node that input has accepted, and returns whether
	// the packet goes on, to the changed destination. Nil stands for a function that returns false.
	Deliver func(*Packet, Choose) bool
}

// End is where a packet got.
type End struct {
	Verdict     Verdict
	Dst         netip.AddrPort
	Masqueraded bool
	Socket      netip.AddrPort
}

// Ends returns the end of a packet for each sequence of choices that the rules may make, without
// repetitions.
func (n *Node) Ends(p Packet) []End {
	var out []End
	seen := map[End]bool{}
	eachChoice(func(choose Choose) {
		q := p
		q.Node, q.Original, q.Remembered = n, p.Dst, map[[2]string]string{}
		v := n.pass(&q, choose)
		e := End{Verdict: v}
		if v == Accept {
			e = End{v, q.Dst, q.Masqueraded, q.Socket}
		}
		if !seen[e] {
			seen[e] = true
			out = append(out, e)
		}
	})
	return out
}

// eachChoice calls do once for each sequence of numbers that its argument can return.
func eachChoice(do func(Choose)) {
	var chosen, limits []uint32
	for {
		i := 0
		do(func(n uint32) uint32 {
			if i == len(chosen) {
				chosen, limits = append(chosen, 0), append(limits, n)
			}
			i++
			return chosen[i-1]
		})
		last := len(chosen) - 1
		for ; last >= 0 && chosen[last]+1 == limits[last]; last-- {
		}
		if last < 0 {
			return
		}
		chosen, limits = chosen[:last+1], limits[:last+1]
		chosen[last]++
	}
}

// pass leads a packet through the hooks.
func (n *Node) pass(p *Packet, choose Choose) Verdict {
	run := func(h Hook, nat bool) Verdict { return n.Rules.Run(h, nat, p, choose) }
	if p.In == "" {
		if v := run(Output, true); v != Accept {
			return v
		}
		if v := run(Postrouting, true); v != Accept || !n.delivers(p) {
			return v
		}
		p.In = Loopback
		if v := run(Prerouting, false); v != Accept {
			return v
		}
	} else if v := run(Prerouting, true); v != Accept {
		return v
	}
	if !n.delivers(p) {
		if v := run(Forward, false); v != Accept {
			return v
		}
		return run(Postrouting, true)
	}
	if v := run(Input, false); v != Accept {
		return v
	}
	if n.Deliver == nil || !n.Deliver(p, choose) {
		return Accept
	}
	p.In = ""
	if v := run(Output, false); v != Accept {
		return v
	}
	return run(Postrouting, true)
}

// LeavesBy reports whether the packet, at a hook that follows routing, goes out by a link of this
// name. Only the loopback link has a name here.
func (p *Packet) LeavesBy(h Hook, link string) bool {
	return link == Loopback && (h == Output || h == Postrouting) && p.Node.delivers(p)
}

// delivers reports whether the node is where a packet is routed to.
func (n *Node) delivers(p *Packet) bool { return p.Mark&n.SocketMark != 0 || n.IsLocal(p.Dst.Addr()) }
