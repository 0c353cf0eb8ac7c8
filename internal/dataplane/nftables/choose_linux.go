package nftables

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// This file has the rules that choose an endpoint. The chain of a class does not look
// anything up in the maps of Services but jumps to constant chains that do: when a rule
// that refers to a map is added, the kernel visits all elements of the map, and when an
// element is added, all such rules.

// firstSlot returns the number of slot 0 of a list.
func firstSlot(scope proxy.Scope) uint32 {
	if scope == proxy.ScopeLocal {
		return localSlots
	}
	return slots
}

// Prefixes of the names of chains that choose an endpoint. The name of the list follows,
// or the timeout after rememberPrefix.
const (
	slotPrefix     = "endpoint-" // translate to the endpoint in a slot
	knownPrefix    = "known-"    // look up the id that is remembered for the client
	livePrefix     = "live-"     // translate to the endpoint with that id, or forget the id
	idPrefix       = "id-"       // look up the id in a slot
	chosenPrefix   = "chosen-"   // translate to the endpoint with the chosen id
	rememberPrefix = "remember-" // remember the endpoint's id for the client
	takenPrefix    = "taken-"    // send to the overlay
)

// otherList is the chain that looks up the id that is remembered for the client in the
// row's other list, and converts it to the id of the same endpoint in this list.
const otherList = "other-list"

// classChains returns the chains of a class: its own and, with session affinity, the one
// that remembers clients. A class without endpoints has none.
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
	pick := t.rule().chooseSlot(c.method, uint32(c.count), firstSlot(c.scope))
	if c.timeout == 0 {
		own.rules = append(own.rules, pick.goTo(slotPrefix+c.list()).comment("choose an endpoint"))
		return []*chain{own}
	}
	remember := t.rememberChain(c)
	own.rules = append(own.rules,
		t.rule().jump(knownPrefix+c.list()).comment("the client may have an endpoint"),
		t.rule().jump(remember.Name).comment("extend the timeout"),
		t.rule().jump(livePrefix+c.list()).comment("to this endpoint"),
		t.rule().jump(otherList).comment("the client may have an endpoint of the row's other list"),
		t.rule().jump(remember.Name).comment("remember it for this list, too"),
		t.rule().jump(livePrefix+c.list()).comment("to this endpoint"),
		pick.jump(idPrefix+c.list()).comment("choose an endpoint"),
		t.rule().jump(remember.Name).comment("remember the endpoint"),
		t.rule().goTo(chosenPrefix+c.list()).comment("to this endpoint"))
	return []*chain{own, remember}
}

// rememberChain remembers the endpoint whose id is the packet's priority, if it is an id.
func (t *table) rememberChain(c class) *chain {
	out := t.chain(rememberPrefix+c.timeout.String(),
		t.rule().priorityIsID().remember(t.affinity, listMask, c.timeout).comment("the client's endpoint"))
	out.rank = rankRemember
	return out
}

const listShrank = "the list became shorter since the lookup"

// endpointChains returns the constant chains that choose an endpoint. An overlay with
// sockets translates nothing, so it needs none.
func (t *table) endpointChains() (out []*chain) {
	if t.overlay.Sockets != nil {
		return nil
	}
	const all = ^uint32(0)
	out = append(out, t.chain(otherList, t.rule().saddr().priority().bitwise(all, halfBlock).setPriorityFrom(t.affinity).
		setPriority(all, halfBlock).comment("the same endpoint in this list")))
	for _, nodePort := range []bool{false, true} {
		m := t.mapsFor(nodePort)
		// This is the only chain that refers to the map of endpoints. The packet's priority
		// is a slot or an id.
		out = append(out, t.chain(m.dnat, t.rule().frontend(m).priority().dnatBy(m.endpoints).comment("to the endpoint")))
		for _, scope := range scopes {
			out = append(out, t.listChains(m, class{nodePort: nodePort, scope: scope})...)
		}
	}
	return out
}

// listChains returns the constant chains that choose from the list of c.
func (t *table) listChains(m *frontendMaps, c class) []*chain {
	first := func(r *rule) *rule { return r.chooseSlot(balancingMethod{}, 1, firstSlot(c.scope)) }
	idInSlot := func(r *rule) *rule { return r.frontend(m).priority().setPriorityFrom(m.ids) }
	list := func(r *rule) *rule { // sets the packet's priority to the number of the list
		r.frontend(m).setPriorityFrom(m.lists)
		if c.scope == proxy.ScopeLocal {
			r.setPriority(^uint32(halfBlock), halfBlock)
		}
		return r
	}
	return []*chain{
		t.chain(slotPrefix+c.list(),
			t.rule().jump(m.dnat).comment("to the endpoint in the slot"),
			first(t.rule()).goTo(m.dnat).comment(listShrank)),
		t.chain(idPrefix+c.list(),
			idInSlot(t.rule()).comment("the endpoint in the slot"),
			idInSlot(first(t.rule().priorityIsSlot())).comment(listShrank)),
		t.chain(knownPrefix+c.list(),
			list(t.rule()).saddr().priority().setPriorityFrom(t.affinity).comment("the endpoint remembered for the client")),
		t.chain(livePrefix+c.list(),
			t.rule().jump(m.dnat).comment("to the client's endpoint"),
			list(t.rule().priorityHas(halfBlock-1)).forget(t.affinity).comment("the endpoint is gone")),
		t.chain(chosenPrefix+c.list(),
			t.rule().saddr().priority().bitwise(listMask, 0).setPriorityFrom(t.affinity).comment("another packet may have chosen first"),
			t.rule().jump(m.dnat).comment("to the endpoint that was chosen"),
			idInSlot(first(t.rule())).goTo(m.dnat).comment(listShrank)),
	}
}

// balancingMethod is how a slot is chosen. The zero value chooses at random.
type balancingMethod struct {
	balancing proxy.Balancing
	// counter identifies the row for round robin: each rule has one counter, and rows
	// that shared it would take each other's turns.
	counter string
}

// methodOf returns how one of several slots of a row is chosen. A method that only an
// overlay supports is replaced by the most similar one.
func methodOf(sp *proxy.ServicePort, slots int) balancingMethod {
	if slots < 2 {
		return balancingMethod{}
	}
	switch sp.Balancing {
	case proxy.RoundRobin:
		// A frontend identifies the row: no two rows have the same one.
		at := sp.Frontends[0].Addr
		addr := strings.ReplaceAll(at.Addr().String(), ":", ".") // nft cannot parse a name with a colon
		return balancingMethod{proxy.RoundRobin, fmt.Sprintf("%s-%s-%d", addr, strings.ToLower(sp.Key.Protocol.String()), at.Port())}
	case proxy.SourceHash, proxy.Maglev:
		return balancingMethod{balancing: proxy.SourceHash}
	default:
		return balancingMethod{}
	}
}

// suffix returns the method as the end of a chain's name; empty for the zero value.
func (m balancingMethod) suffix() string {
	switch {
	case m == balancingMethod{}:
		return ""
	case m.counter == "":
		return "-" + m.balancing.String()
	default:
		return "-" + m.balancing.String() + "-" + m.counter
	}
}

// hashSeed is constant, so that clients keep their endpoints after a restart.
const hashSeed = 0x51011ce

// chooseSlot sets the packet's priority to one of the numbers in [offset, offset+n).
func (r *rule) chooseSlot(m balancingMethod, n, offset uint32) *rule {
	switch m.balancing {
	case proxy.RoundRobin:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_INCREMENTAL, Offset: offset})
	case proxy.SourceHash:
		r.saddr().add(&expr.Hash{
			SourceRegister: firstRegister, DestRegister: firstRegister, Length: 4 * r.addrWords(),
			Modulus: n, Seed: hashSeed, Offset: offset, Type: expr.HashTypeJenkins,
		})
	default:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_RANDOM, Offset: offset})
	}
	return r.setMeta(expr.MetaKeyPRIORITY)
}
