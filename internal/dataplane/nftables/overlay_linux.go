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

// Overlay is another part of the kernel, or a program, that takes connections
// over: the rules decide about policy and lead connections there, instead of
// choosing an endpoint. What it does not take, they translate as ever.
type Overlay struct {
	Table string // its name, since two modes may be there when one follows the other

	// Takes reports whether the overlay serves the list of a route to a frontend.
	// Its answer for the same arguments changes before a Sync only. Nil: it takes
	// nothing.
	Takes func(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool

	// OnLink says that the addresses of frontends that are taken are this node's,
	// and only because of the overlay: their other ports are nobody's, and they
	// are no sources that an endpoint could answer to.
	OnLink bool

	// NodePortsTo is where packets to NodePorts go that are taken, with their port.
	NodePortsTo map[proxy.Family]netip.Addr

	// Sockets is how packets get to a program. Nil: they stay as they are.
	Sockets *Sockets

	// Untracked says what is not tracked. Its answer changes before a Sync only. Nil:
	// everything is.
	Untracked func() Untracked
}

// Sockets says which sockets packets are led to, without translating them.
type Sockets struct {
	Mark uint32 // the bit of the packet mark with which packets are routed to this host
	Own  uint32 // the bit of the packet mark that the program's own packets have

	// Ports are the program's, on the loopback address: by scope, and by whether
	// the endpoint sees the client (0) or the node (1).
	Ports [2][2]uint16
}

const (
	// priorityBeforeIPVS is after translations and before IPVS sees what the node
	// itself sends.
	priorityBeforeIPVS = priorityDNAT + 1
	// prioritySockets is before translations, which must not come first, and after
	// connection tracking.
	prioritySockets = -150
	// priorityNoDNAT is before the translations of other service proxies.
	priorityNoDNAT = priorityDNAT - 5
)

// taken reports whether the overlay serves a route.
func (t *table) taken(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool {
	return t.over.Takes != nil && t.over.Takes(sp, f, r)
}

// translates reports whether the rules choose any endpoint of a row.
func (t *table) translates(sp *proxy.ServicePort, n *proxy.Node) bool {
	if t.over.Takes == nil {
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

// takenChain leads packets to the overlay.
func (t *table) takenChain(c class) *chain {
	out := t.chain(c.chain(), t.rule().clearPriority().comment("what lookups put there"))
	out.class, out.rank = c, rankClass
	add := func(r *nft.Rule) { out.rules = append(out.rules, r) }
	switch {
	case t.over.Sockets != nil:
		ports := t.over.Sockets.Ports[c.scope]
		if !c.masquerade {
			add(t.rule().marked().toSocket(ports[1]).comment("the endpoint sees the node"))
			add(t.rule().toSocket(ports[0]).comment("the endpoint sees the client"))
		} else {
			add(t.rule().toSocket(ports[1]).comment("the endpoint sees the node"))
		}
		return out
	case c.masquerade:
		add(t.rule().setMark(true).comment("masquerade"))
	}
	if c.nodePort {
		add(t.rule().dnatTo(t.over.NodePortsTo[t.family]).comment("to where NodePorts are taken"))
	} else {
		add(t.rule().accept().comment("it is taken"))
	}
	return out
}

// socketHooks returns the base chains that lead to sockets.
func (t *table) socketHooks() []*chain {
	in, out := t.openSocketHooks()
	// A client may use a port again while our socket of its last connection waits
	// in TIME_WAIT: that one must not have the packet.
	// What the program sends to an endpoint on this host is not for a Service once more.
	in.rules = append([]*nft.Rule{
		t.rule().meta(expr.MetaKeyMARK).has(t.over.Sockets.Own).accept().comment("the program's own, to this host"),
		t.rule().beginsTCP().untranslated().jump(services).comment("new connections to Services"),
	}, in.rules...)
	in.rules = append(in.rules,
		t.foreign(),
		t.datagrams())
	out.rules = append(out.rules, t.toProgram()...)
	// Chains of NAT keep the kernel translating the flows that another mode began.
	return []*chain{
		in, out,
		t.base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityNoDNAT, t.keepDestination()),
		t.base("nat-input", "nat", unix.NF_INET_LOCAL_IN, prioritySNAT),
		t.base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityNoDNAT, t.keepDestination()),
		t.base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT),
	}
}

// openSocketHooks returns the base chains that lead to sockets, with what open
// connections that come from elsewhere need.
func (t *table) openSocketHooks() (in, out *chain) {
	own := t.over.Sockets.Own
	in = t.base("sockets-prerouting", "filter", unix.NF_INET_PRE_ROUTING, prioritySockets,
		t.rule().protocol().is([]byte{unix.IPPROTO_TCP}).socketIsTransparent().setSocketMark().accept().comment("a socket has it"),
		t.rule().protocol().is([]byte{unix.IPPROTO_UDP}).socketIsTransparent().socketIsReady().setSocketMark().accept().
			comment("a socket of the program has it"))
	out = t.base("sockets-output", "route", unix.NF_INET_LOCAL_OUT, prioritySockets,
		t.rule().meta(expr.MetaKeyMARK).has(own).newFlow().markFlow(own).comment("flows that the program begins"),
		t.rule().meta(expr.MetaKeyMARK).has(own).accept().comment("the program's own"),
		t.rule().conntrack(expr.CtKeyMARK).has(own).setSocketMark().accept().comment("this host's answers to the program"),
		t.foreign())
	return in, out
}

// keepDestination keeps those from translating what a socket has: while one mode
// follows another, the rules of both are there. Where a destination is translated
// to itself, the kernel asks no other chain.
func (t *table) keepDestination() *nft.Rule {
	r := t.rule().meta(expr.MetaKeyMARK).has(t.over.Sockets.Mark).load(false)
	return r.add(&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(t.Table.Family), RegAddrMin: firstRegister}).
		comment("to a socket, as it is")
}

// beginsTCP matches the first packet of a TCP connection: of SYN and ACK it has SYN.
func (r *rule) beginsTCP() *rule {
	const syn, ack = 0x02, 0x10
	r.protocol().is([]byte{unix.IPPROTO_TCP})
	at := r.take(1)
	return r.add(
		&expr.Payload{DestRegister: at, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: at, DestRegister: at, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
	).is([]byte{syn})
}

func (r *rule) untranslated() *rule {
	return r.conntrack(expr.CtKeySTATUS).bits(statusDNAT, 0).is(hostWord(0))
}

// foreign leaves flows to others that another mode translates.
func (t *table) foreign() *nft.Rule {
	return t.rule().translated().accept().comment("flows that another mode translates")
}

// datagrams leads them to the program, also those that do not begin a flow.
func (t *table) datagrams() *nft.Rule {
	return t.rule().protocol().is([]byte{unix.IPPROTO_UDP}).jump(services).comment("datagrams to Services")
}

// toProgram returns what leads this host's own packets to the program.
func (t *table) toProgram() []*nft.Rule {
	a := &t.addresses
	return []*nft.Rule{
		t.rule().frontend(a).priorityBy(a.external).clearPriority().setSocketMark().accept().
			comment("externalTrafficPolicy Local, by way of this host"),
		t.rule().frontend(a).priorityBy(a.empty).clearPriority().accept().comment("no endpoint"),
		t.rule().frontend(a).priorityBy(a.dispatch).clearPriority().setSocketMark().comment("to Services, by way of this host"),
	}
}

// remember notes which connections of this host are led to a socket. Their packets
// get there by the flow's mark then, whatever becomes of the Service.
func (t *table) remember() *nft.Rule {
	s := t.over.Sockets
	return t.rule().meta(expr.MetaKeyMARK).has(s.Mark).protocol().is([]byte{unix.IPPROTO_TCP}).newFlow().markFlow(s.Own).
		comment("connections of this host stay with their socket")
}

// unled has a chain look at packets that nothing leads to an endpoint: those that begin a flow
// and, where each datagram is led to a socket, all that a client sends. The flow
// of such a datagram says nothing of where it goes, so it is not ended when it should go elsewhere.
func (t *table) unled(chain string) []*nft.Rule {
	rules := []*nft.Rule{t.rule().newFlow().jump(chain).comment("begins a flow")}
	if t.over.Sockets != nil {
		const original = 0
		datagram := t.rule().protocol().is([]byte{unix.IPPROTO_UDP})
		rules = append(rules, datagram.conntrack(expr.CtKeyDIRECTION).is([]byte{original}).jump(chain).comment("from a client"))
	}
	return rules
}

// toSockets lets pass what is on the way to a socket: the node and our pods may
// have an endpoint where others have none.
func (t *table) toSockets() *nft.Rule {
	return t.rule().meta(expr.MetaKeyMARK).has(t.over.Sockets.Mark).accept().comment("to a socket")
}

// otherPortsChain is for packets to Services that nobody has translated.
func (t *table) otherPortsChain() *chain {
	a := &t.addresses
	return t.chain(otherPorts,
		t.rule().frontend(a).priorityBy(a.dispatch).comment("is it a Service port?"),
		t.rule().priorityHas(scratchBit).clearPriority().accept().comment("it is"),
		t.rule().goTo(otherAddresses).comment("addresses of no Service port"))
}

// dnatTo sends the connection to an address, with its port.
func (r *rule) dnatTo(a netip.Addr) *rule {
	return r.add(
		&expr.Immediate{Register: firstRegister, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.t.Table.Family), RegAddrMin: firstRegister})
}

// loopback returns the address that the program's sockets are bound to: others
// cannot send to it, and what is forwarded is not taken for theirs.
func loopback(f proxy.Family) netip.Addr {
	if f == proxy.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// toSocket gives a packet to the socket that has its connection, or to the one
// that listens on a port. Without one, the rule ends.
func (r *rule) toSocket(port uint16) *rule {
	family := byte(r.t.Table.Family)
	at := nft.Register(r.words())
	r.add(
		&expr.Immediate{Register: firstRegister, Data: loopback(r.t.family).AsSlice()},
		&expr.Immediate{Register: at, Data: []byte{byte(port >> 8), byte(port)}},
		&expr.TProxy{Family: family, TableFamily: family, RegAddr: firstRegister, RegPort: at})
	return r.setSocketMark().accept()
}

// socketIsTransparent matches packets that a transparent socket is there for.
func (r *rule) socketIsTransparent() *rule {
	return r.add(&expr.Socket{Key: expr.SocketKeyTransparent, Register: r.take(1)}).is([]byte{1})
}

// socketIsReady matches packets that a socket is there for which the program has
// marked. A UDP socket that is bound and not yet connected would get the
// datagrams of others, so it is marked then. TCP packets may be for a connection
// that has no socket yet, or none any more.
func (r *rule) socketIsReady() *rule {
	return r.add(&expr.Socket{Key: expr.SocketKeyMark, Register: r.take(1)}).has(r.t.over.Sockets.Own)
}

func (r *rule) markFlow(bits uint32) *rule { return r.changeFlowMark(^bits, bits) }

// setSocketMark sets the mark with which packets are routed to this host, and
// clears the one for masquerading.
func (r *rule) setSocketMark() *rule {
	m := r.t.over.Sockets.Mark
	return r.meta(expr.MetaKeyMARK).bits(^(m | r.t.mark), m).set(expr.MetaKeyMARK)
}

// Reduce leaves of the rules of a mode with sockets only what its open
// connections need, while another mode takes new ones: its program still runs.
func (o Overlay) Reduce(ctx context.Context) error {
	conn, err := nft.Open()
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	var first, rest nft.Batch // a packet may be between two hooks: what it passed is changed before what it comes to
	for _, f := range proxy.Families {
		t := newTable(f, 0, o)
		t.mark = 0 // it is not known, and none of these packets has it
		listing, err := listIfAny(ctx, conn, t.Table)
		if err != nil {
			return err
		}
		if listing == nil || !complete(listing) {
			continue
		}
		in, out := t.openSocketHooks()
		others := func() *nft.Rule { return t.rule().newFlow().accept().comment("another mode has new ones") }
		in.rules = append(in.rules,
			t.rule().meta(expr.MetaKeyMARK).has(o.Sockets.Mark).jump(services).comment("was sent here before that"),
			t.foreign(), others(), t.datagrams())
		out.rules = append(append(out.rules, others()), t.toProgram()...)
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
			return fmt.Errorf("leave open connections to a former daemon: %w", err)
		}
	}
	return nil
}

// complete reports whether a table takes new connections.
func complete(l *nft.Listing) bool {
	_, ok := l.Hooks[firewallPrerouting]
	return ok
}

// Complete reports whether the tables take new connections: no other mode has
// reduced them.
func (d *Dataplane) Complete(ctx context.Context) (bool, error) {
	for _, t := range d.tables {
		listing, err := listIfAny(ctx, d.conn, t.Table)
		if err != nil || listing == nil || !complete(listing) {
			return false, err
		}
	}
	return true, nil
}
