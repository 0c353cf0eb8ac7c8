package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Overlay describes another part of the kernel, or a program, that takes connections
// over: the rules decide policy and send connections there instead of choosing an
// endpoint. The rules translate the connections that the overlay does not take.
type Overlay struct {
	Table string // the table's name; while one mode replaces another, the tables of both exist

	// Takes reports whether the overlay handles connections to a frontend that follow a
	// route. The result for the same arguments may change only before a Sync. If Takes is nil,
	// the overlay takes nothing.
	Takes func(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool

	// OnLink says that the addresses of frontends that the overlay takes are addresses of
	// this node, for the sake of the overlay only: nothing listens on their other ports,
	// and an endpoint could not reply to a packet that has one as its source.
	OnLink bool

	// NodePortsTo is the address to which packets to NodePorts that the overlay takes are
	// translated; the port stays.
	NodePortsTo map[proxy.Family]netip.Addr

	// Sockets says how packets reach a program. If it is nil, packets that the overlay takes
	// are accepted unchanged, except for those to NodePorts.
	Sockets *Sockets

	// Untracked returns which connections are not tracked. The result may change only before
	// a Sync. If Untracked is nil, everything is tracked.
	Untracked func() Untracked
}

// Sockets says which sockets receive packets, without translation.
type Sockets struct {
	Mark uint32 // the bit of the packet mark that routes packets to this host
	Own  uint32 // the bit of the packet mark that the program sets on its own packets

	// Ports are the program's ports on the loopback address, by scope, and by whether the
	// endpoint sees the client's address (0) or the node's (1).
	Ports [2][2]uint16
}

const (
	// priorityBeforeIPVS is after translations, and before IPVS sees packets that the node
	// sends.
	priorityBeforeIPVS = priorityDNAT + 1
	// prioritySockets is after connection tracking and before translations.
	prioritySockets = -150
	// priorityNoDNAT is before the translations of other service proxies.
	priorityNoDNAT = priorityDNAT - 5
)

// taken reports whether the overlay handles a route.
func (t *table) taken(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool {
	return t.overlay.Takes != nil && t.overlay.Takes(sp, f, r)
}

// translates reports whether the rules, not the overlay, choose endpoints for any route of
// a row.
func (t *table) translates(sp *proxy.ServicePort, n *proxy.Node) bool {
	if t.overlay.Takes == nil {
		return true
	}
	for _, f := range sp.Frontends {
		p := sp.Policy(f.Kind, n)
		for _, r := range []proxy.Route{p[proxy.ThisNode], p[proxy.Elsewhere]} {
			if len(r.To) > 0 && !t.taken(sp, f, r) {
				return true
			}
		}
	}
	return false
}

// takenChain returns the chain that sends packets to the overlay.
func (t *table) takenChain(c class) *chain {
	out := t.chain(c.chain(), t.rule().clearPriority().comment("clear what lookups stored"))
	out.class, out.rank = c, rankClass
	add := func(r *nft.Rule) { out.rules = append(out.rules, r) }
	switch {
	case t.overlay.Sockets != nil:
		ports := t.overlay.Sockets.Ports[c.scope]
		if !c.masquerade {
			add(t.rule().marked().tproxy(ports[1]).comment("the endpoint sees the node"))
			add(t.rule().tproxy(ports[0]).comment("the endpoint sees the client"))
		} else {
			add(t.rule().tproxy(ports[1]).comment("the endpoint sees the node"))
		}
		return out
	case c.masquerade:
		add(t.rule().setMark(true).comment("masquerade"))
	}
	if c.nodePort {
		add(t.rule().dnatTo(t.overlay.NodePortsTo[t.family]).comment("to the address that handles NodePorts"))
	} else {
		add(t.rule().accept().comment("left to the overlay"))
	}
	return out
}

// socketBaseChains returns the base chains that send packets to sockets.
func (t *table) socketBaseChains() []*chain {
	in, out := t.openConnectionChains()
	// These rules come first because a client may reuse a port while our socket of its last
	// connection is in TIME_WAIT, and that socket must not get the packet; and because
	// packets that the program sends to an endpoint on this host must not go to a Service again.
	in.rules = append([]*nft.Rule{
		t.rule().meta(expr.MetaKeyMARK).hasAny(t.overlay.Sockets.Own).accept().comment("packets of the program to this host"),
		t.rule().tcpSYN().untranslated().jump(services).comment("new connections to Services"),
	}, in.rules...)
	in.rules = append(in.rules, t.datagramsToServices())
	out.rules = append(out.rules, t.outputToProgram()...)
	// The kernel translates the existing flows of another mode only while base chains of
	// type nat exist.
	return []*chain{
		in, out,
		t.baseChain("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityNoDNAT, t.keepDestination()),
		t.baseChain("nat-input", "nat", unix.NF_INET_LOCAL_IN, prioritySNAT),
		t.baseChain("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityNoDNAT, t.keepDestination()),
		t.baseChain("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT),
	}
}

// openConnectionChains returns the base chains that send packets to sockets, with the rules
// that open connections need.
func (t *table) openConnectionChains() (in, out *chain) {
	own, icmp := t.overlay.Sockets.Own, byte(unix.IPPROTO_ICMP)
	if t.family == proxy.IPv6 {
		icmp = unix.IPPROTO_ICMPV6
	}
	in = t.baseChain("sockets-prerouting", "filter", unix.NF_INET_PRE_ROUTING, prioritySockets,
		// The reply to such a flow may go to the address and port of a socket of the program: the
		// client reuses a port that the program has chosen for it.
		t.acceptTranslated(),
		t.rule().protocol().eq([]byte{unix.IPPROTO_TCP}).socketIsTransparent().setSocketMark().accept().comment("packets of an open connection"),
		t.rule().protocol().eq([]byte{unix.IPPROTO_UDP}).socketIsTransparent().socketIsReady().setSocketMark().accept().
			comment("datagrams of a connected socket"),
		t.rule().protocol().eq([]byte{icmp}).socketIsTransparent().socketIsReady().setSocketMark().accept().
			comment("ICMP errors about packets of such a socket"))
	out = t.baseChain("sockets-output", "route", unix.NF_INET_LOCAL_OUT, prioritySockets,
		t.rule().meta(expr.MetaKeyMARK).hasAny(own).newFlow().markFlow(own).comment("flows that the program begins"),
		t.rule().meta(expr.MetaKeyMARK).hasAny(own).accept().comment("packets of the program"),
		t.rule().conntrack(expr.CtKeyMARK).hasAny(own).setSocketMark().accept().comment("replies of this host to the program"),
		t.acceptTranslated())
	return in, out
}

// keepDestination returns the rule that keeps other chains from translating packets that
// go to a socket: while one mode replaces another, the rules of both exist. It translates the
// destination to itself, after which the kernel runs no other chain that translates it.
func (t *table) keepDestination() *nft.Rule {
	r := t.rule().meta(expr.MetaKeyMARK).hasAny(t.overlay.Sockets.Mark).daddr()
	return r.add(&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(t.Table.Family), RegAddrMin: firstRegister}).
		comment("to a socket, untranslated")
}

// tcpSYN matches the first packet of a TCP connection: SYN is set and ACK is not.
func (r *rule) tcpSYN() *rule {
	const syn, ack = 0x02, 0x10
	r.protocol().eq([]byte{unix.IPPROTO_TCP})
	at := r.allocate(1)
	return r.add(
		&expr.Payload{DestRegister: at, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
	).eq([]byte{syn})
}

// untranslated matches a flow whose destination was not translated.
func (r *rule) untranslated() *rule {
	return r.conntrack(expr.CtKeySTATUS).bitwise(statusDNAT, 0).eq(hostWord(0))
}

// acceptTranslated returns the rule that leaves alone the flows that another mode translates.
func (t *table) acceptTranslated() *nft.Rule {
	return t.rule().translated().accept().comment("flows that another mode translates")
}

// datagramsToServices returns the rule that sends datagrams to the program, including those
// that do not begin a flow.
func (t *table) datagramsToServices() *nft.Rule {
	return t.rule().protocol().eq([]byte{unix.IPPROTO_UDP}).jump(services).comment("datagrams to Services")
}

// outputToProgram returns the rules that send packets of this host to the program.
func (t *table) outputToProgram() []*nft.Rule {
	a := &t.addresses
	return []*nft.Rule{
		t.rule().frontend(a).setPriorityFrom(a.external).clearPriority().setSocketMark().accept().
			comment("externalTrafficPolicy Local, routed to this host"),
		t.rule().frontend(a).setPriorityFrom(a.noEndpoints).clearPriority().accept().comment("no endpoint"),
		t.rule().frontend(a).setPriorityFrom(a.dispatch).clearPriority().setSocketMark().comment("to Services, routed to this host"),
	}
}

// rememberSocketFlow returns the rule that marks the flows of connections of this host
// that go to a socket. Their packets reach the socket by the connection mark even if the
// Service changes.
func (t *table) rememberSocketFlow() *nft.Rule {
	s := t.overlay.Sockets
	return t.rule().meta(expr.MetaKeyMARK).hasAny(s.Mark).protocol().eq([]byte{unix.IPPROTO_TCP}).newFlow().markFlow(s.Own).
		comment("connections of this host stay with their socket")
}

// newFlowJumps returns rules that jump to a chain with the packets that may have no
// endpoint: those that begin a flow and, with sockets, all datagrams that a client sends.
// The program decides about each datagram, so the flow says nothing about its endpoint, and
// is not ended when the endpoint is removed.
func (t *table) newFlowJumps(chain string) []*nft.Rule {
	rules := []*nft.Rule{t.rule().newFlow().jump(chain).comment("begins a flow")}
	if t.overlay.Sockets != nil {
		const original = 0
		datagram := t.rule().protocol().eq([]byte{unix.IPPROTO_UDP})
		rules = append(rules, datagram.conntrack(expr.CtKeyDIRECTION).eq([]byte{original}).jump(chain).comment("from a client"))
	}
	return rules
}

// acceptToSocket returns the rule that accepts packets on their way to a socket, before the
// rules that refuse: the node and our pods may have an endpoint where clients from elsewhere
// have none.
func (t *table) acceptToSocket() *nft.Rule {
	return t.rule().meta(expr.MetaKeyMARK).hasAny(t.overlay.Sockets.Mark).accept().comment("to a socket")
}

// otherPortsChain accepts packets to Service ports, and refuses untranslated packets to
// other ports of Service addresses.
func (t *table) otherPortsChain() *chain {
	a := &t.addresses
	return t.chain(otherPorts,
		t.rule().frontend(a).setPriorityFrom(a.dispatch).comment("look up the Service port"),
		t.rule().priorityHas(scratchBit).clearPriority().accept().comment("a Service port"),
		t.rule().goTo(otherAddresses).comment("not a Service port"))
}

// dnatTo translates the destination address; the port stays.
func (r *rule) dnatTo(a netip.Addr) *rule {
	return r.add(
		&expr.Immediate{Register: firstRegister, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.t.Table.Family), RegAddrMin: firstRegister})
}

// SocketAddr returns the address that the program's sockets are bound to. Other hosts cannot
// send to it, and forwarded packets do not match the sockets.
func SocketAddr(f proxy.Family) netip.Addr {
	if f == proxy.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// tproxy assigns a packet to the socket of its connection, or to the one that listens on
// the port. If there is none, the rule does not match.
func (r *rule) tproxy(port uint16) *rule {
	family := byte(r.t.Table.Family)
	at := nft.Register(r.addrWords())
	r.add(
		&expr.Immediate{Register: firstRegister, Data: SocketAddr(r.t.family).AsSlice()},
		&expr.Immediate{Register: at, Data: []byte{byte(port >> 8), byte(port)}},
		&expr.TProxy{Family: family, TableFamily: family, RegAddr: firstRegister, RegPort: at})
	return r.setSocketMark().accept()
}

// socketIsTransparent matches packets for which there is a transparent socket.
func (r *rule) socketIsTransparent() *rule {
	return r.add(&expr.Socket{Key: expr.SocketKeyTransparent, Register: r.allocate(1)}).eq([]byte{1})
}

// socketIsReady matches packets for which there is a socket that the program has marked.
// A UDP socket that is bound but not connected yet would get datagrams of other clients, so the
// program marks it when it is connected. TCP packets cannot be checked like this: their
// connection may not have a full socket, which alone carries a mark, yet or any more.
func (r *rule) socketIsReady() *rule {
	return r.add(&expr.Socket{Key: expr.SocketKeyMark, Register: r.allocate(1)}).hasAny(r.t.overlay.Sockets.Own)
}

// markFlow sets bits of the flow's connection mark.
func (r *rule) markFlow(bits uint32) *rule { return r.changeFlowMark(^bits, bits) }

// setSocketMark sets the mark that routes packets to this host, and clears the one for
// masquerading.
func (r *rule) setSocketMark() *rule {
	m := r.t.overlay.Sockets.Mark
	return r.meta(expr.MetaKeyMARK).bitwise(^(m | r.t.mark), m).setMeta(expr.MetaKeyMARK)
}

// Reduce removes from the rules of a mode with sockets everything that its open connections
// do not need. Another mode takes new connections, while the old mode's program still runs.
func (o Overlay) Reduce(ctx context.Context) error {
	conn, err := nft.Open()
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	// A packet may be between two hooks, so the chains that it passes first are changed first.
	var first, rest nft.Batch
	for _, f := range proxy.Families {
		t := newTable(f, 0, o)
		t.mark = 0 // the masquerade mark is not known here, and none of these packets has it
		listing, err := listIfAny(ctx, conn, t.Table)
		if err != nil {
			return err
		}
		if listing == nil || !complete(listing) {
			continue
		}
		in, out := t.openConnectionChains()
		others := func() *nft.Rule { return t.rule().newFlow().accept().comment("another mode handles new connections") }
		in.rules = append(in.rules,
			t.rule().meta(expr.MetaKeyMARK).hasAny(o.Sockets.Mark).jump(services).comment("sent here before the change of mode"),
			others(), t.datagramsToServices())
		out.rules = append(append(out.rules, others()), t.outputToProgram()...)
		for name := range listing.Hooks {
			if name != in.Name && name != out.Name {
				rest.FlushChain(t.Table, name)
				rest.DeleteChain(t.Table, name)
			}
		}
		t.rewrite(&first, in, true)
		t.rewrite(&first, out, true)
	}
	for _, b := range []*nft.Batch{&first, &rest} {
		if err := conn.Commit(ctx, b); err != nil {
			return fmt.Errorf("reduce the rules to the open connections of a former daemon: %w", err)
		}
	}
	return nil
}

// complete reports whether a table handles new connections: it was not reduced.
func complete(l *nft.Listing) bool {
	_, ok := l.Hooks[firewallPrerouting]
	return ok
}

// Complete reports whether the tables handle new connections: they exist and no other mode
// has reduced them.
func (d *Dataplane) Complete(ctx context.Context) (bool, error) {
	for _, t := range d.tables {
		listing, err := listIfAny(ctx, d.conn, t.Table)
		if err != nil || listing == nil || !complete(listing) {
			return false, err
		}
	}
	return true, nil
}
