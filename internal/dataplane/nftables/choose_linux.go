package nftables

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// This file has the rules by which an endpoint is chosen. The chain of a class
// looks nothing up in the maps of Services, but has constant chains do it: to add
// a rule that refers to a map, the kernel looks at all the map's elements, and to
// add an element, at all such rules.

func firstSlot(scope proxy.Scope) uint32 {
	if scope == proxy.ScopeLocal {
		return localSlots
	}
	return slots
}

// Names of chains that choose begin so; the list they are for follows.
const (
	toSlot     = "endpoint-" // to the endpoint in a slot
	toKnown    = "known-"    // the id that the client is remembered for
	toLive     = "live-"     // to the endpoint with that id, or forget it
	toID       = "id-"       // the id in a slot
	toChosen   = "chosen-"   // to the endpoint with the id that was chosen
	toRemember = "remember-" // note the endpoint's id; how long follows
	toTaken    = "taken-"    // to the overlay
)

// otherList is the chain that takes the id that the row's other list remembers the
// client for, as that of the same endpoint in this one.
const otherList = "other-list"

// classChains returns the chains of a class: its own, and the one that remembers.
func (t *table) classChains(c class) []*chain {
	if c.taken {
		return []*chain{t.takenChain(c)}
	}
	if c.count == 0 {
		return nil
	}
	own := t.chain(c.chain())
	own.class, own.rank = c, rankClass
	if c.masquerade {
		own.rules = append(own.rules, t.rule().setMark(true).comment("masquerade"))
	}
	pick := t.rule().chooseSlot(c.way, uint32(c.count), firstSlot(c.scope))
	if c.timeout == 0 {
		own.rules = append(own.rules, pick.goTo(toSlot+c.list()).comment("choose an endpoint"))
		return []*chain{own}
	}
	remember := t.rememberChain(c)
	own.rules = append(own.rules,
		t.rule().jump(toKnown+c.list()).comment("the client may have an endpoint"),
		t.rule().jump(remember.Name).comment("for longer"),
		t.rule().jump(toLive+c.list()).comment("go there"),
		t.rule().jump(otherList).comment("it may have one of another policy"),
		t.rule().jump(remember.Name).comment("of this one, too"),
		t.rule().jump(toLive+c.list()).comment("go there"),
		pick.jump(toID+c.list()).comment("choose an endpoint"),
		t.rule().jump(remember.Name).comment("for the next time"),
		t.rule().goTo(toChosen+c.list()).comment("go there"))
	return []*chain{own, remember}
}

// rememberChain notes the endpoint in the packet's priority, if there is one.
func (t *table) rememberChain(c class) *chain {
	out := t.chain(toRemember+c.timeout.String(),
		t.rule().priorityIsID().remember(t.affinity, listMask, c.timeout).comment("the client's endpoint"))
	out.rank = rankRemember
	return out
}

const overtaken = "there are fewer since the Service was looked up"

// choices returns the constant chains that choose. Without translations, none does.
func (t *table) choices() (out []*chain) {
	if t.over.Sockets != nil {
		return nil
	}
	const all = ^uint32(0)
	out = append(out, t.chain(otherList, t.rule().load(true).priority().bits(all, halfBlock).priorityBy(t.affinity).
		setPriority(all, halfBlock).comment("the same endpoint in this list")))
	for _, nodePort := range []bool{false, true} {
		m := t.frontends(nodePort)
		// The only chain that refers to the endpoints, with a slot or an id in the packet's priority.
		out = append(out, t.chain(m.dnat, t.rule().frontend(m).priority().dnatBy(m.endpoints).comment("to the endpoint")))
		for _, scope := range scopes {
			out = append(out, t.choicesOf(m, class{nodePort: nodePort, scope: scope})...)
		}
	}
	return out
}

// choicesOf returns the constant chains that choose from one list.
func (t *table) choicesOf(m *frontendMaps, c class) []*chain {
	first := func(r *rule) *rule { return r.chooseSlot(way{}, 1, firstSlot(c.scope)) }
	idInSlot := func(r *rule) *rule { return r.frontend(m).priority().priorityBy(m.ids) }
	list := func(r *rule) *rule { // puts the number of the list into the packet's priority
		r.frontend(m).priorityBy(m.lists)
		if c.scope == proxy.ScopeLocal {
			r.setPriority(^uint32(halfBlock), halfBlock)
		}
		return r
	}
	return []*chain{
		t.chain(toSlot+c.list(),
			t.rule().jump(m.dnat).comment("to the endpoint in the slot"),
			first(t.rule()).goTo(m.dnat).comment(overtaken)),
		t.chain(toID+c.list(),
			idInSlot(t.rule()).comment("the endpoint in the slot"),
			idInSlot(first(t.rule().priorityIsSlot())).comment(overtaken)),
		t.chain(toKnown+c.list(),
			list(t.rule()).load(true).priority().priorityBy(t.affinity).comment("what the client is remembered for")),
		t.chain(toLive+c.list(),
			t.rule().jump(m.dnat).comment("to the client's endpoint"),
			list(t.rule().priorityHas(halfBlock-1)).forget(t.affinity).comment("it is gone")),
		t.chain(toChosen+c.list(),
			t.rule().load(true).priority().bits(listMask, 0).priorityBy(t.affinity).comment("another packet may have been faster"),
			t.rule().jump(m.dnat).comment("to the endpoint that was chosen"),
			idInSlot(first(t.rule())).goTo(m.dnat).comment(overtaken)),
	}
}

// way is how a slot is chosen. The zero value is by chance.
type way struct {
	balancing proxy.Balancing
	// turns says whose turns round robin counts: a rule has one counter, and
	// Services that shared it would take each other's turns.
	turns string
}

// wayOf returns how one of several slots of a row is chosen. What only an
// overlay can do is replaced by what comes nearest.
func wayOf(sp *proxy.ServicePort, slots int) way {
	if slots < 2 {
		return way{}
	}
	switch sp.Balancing {
	case proxy.RoundRobin:
		// No two rows share a frontend.
		at := sp.Frontends[0].Addr
		addr := strings.ReplaceAll(at.Addr().String(), ":", ".") // nft reads no name with a colon
		return way{proxy.RoundRobin, fmt.Sprintf("%s-%s-%d", addr, strings.ToLower(sp.Key.Protocol.String()), at.Port())}
	case proxy.SourceHash, proxy.Maglev:
		return way{balancing: proxy.SourceHash}
	default:
		return way{}
	}
}

// suffix is what the name of a class has of it.
func (w way) suffix() string {
	switch {
	case w == way{}:
		return ""
	case w.turns == "":
		return "-" + w.balancing.String()
	default:
		return "-" + w.balancing.String() + "-" + w.turns
	}
}

// hashSeed is the same in every process, so that clients stay where they are
// after a restart.
const hashSeed = 0x51011ce

// chooseSlot sets the packet's priority to one of n numbers from an offset on.
func (r *rule) chooseSlot(w way, n, offset uint32) *rule {
	switch w.balancing {
	case proxy.RoundRobin:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_INCREMENTAL, Offset: offset})
	case proxy.SourceHash:
		r.load(true).add(&expr.Hash{
			SourceRegister: firstRegister, DestRegister: firstRegister, Length: 4 * r.words(),
			Modulus: n, Seed: hashSeed, Offset: offset, Type: expr.HashTypeJenkins,
		})
	default:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_RANDOM, Offset: offset})
	}
	return r.set(expr.MetaKeyPRIORITY)
}
