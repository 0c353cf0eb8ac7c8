package nftables

import "sluice/internal/proxy"

// This file has the rules by which an endpoint is chosen. The chain of a class
// looks nothing up in the maps of Services, but has constant chains do it: to add
// a rule that refers to a map, the kernel looks at all the map's elements, and to
// add an element, at all such rules.

// firstSlot returns the number of a list's first slot.
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

// choices returns the constant chains that choose. Without translations, none does.
func (t *table) choices() (out []*chain) {
	if t.over.Sockets != nil {
		return nil
	}
	for _, nodePort := range []bool{false, true} {
		out = append(out, t.dnatChain(nodePort))
		for _, scope := range scopes {
			c := class{nodePort: nodePort, scope: scope}
			out = append(out, t.slotChain(c), t.idChain(c), t.knownChain(c), t.liveChain(c), t.chosenChain(c))
		}
	}
	return out
}

const overtaken = "there are fewer since the Service was looked up"

// dnatChain is the only one that refers to the endpoints, with a slot or an id in
// the packet's priority.
func (t *table) dnatChain(nodePort bool) *chain {
	m := t.frontends(nodePort)
	return t.chain(m.dnat, t.rule().frontend(m).priority().dnatBy(m.endpoints).comment("to the endpoint"))
}

func (t *table) slotChain(c class) *chain {
	m := t.frontends(c.nodePort)
	return t.chain(toSlot+c.list(),
		t.rule().jump(m.dnat).comment("to the endpoint in the slot"),
		t.rule().chooseSlot(way{}, 1, firstSlot(c.scope)).goTo(m.dnat).comment(overtaken))
}

// list puts the number of the list into the packet's priority.
func (t *table) list(r *rule, c class) *rule {
	m := t.frontends(c.nodePort)
	r.frontend(m).priorityBy(m.lists)
	if c.scope == proxy.ScopeLocal {
		r.setPriority(^uint32(halfBlock), halfBlock)
	}
	return r
}

func (t *table) knownChain(c class) *chain {
	return t.chain(toKnown+c.list(),
		t.list(t.rule(), c).load(true).priority().priorityBy(t.affinity).comment("what the client is remembered for"))
}

func (t *table) liveChain(c class) *chain {
	m := t.frontends(c.nodePort)
	return t.chain(toLive+c.list(),
		t.rule().jump(m.dnat).comment("to the client's endpoint"),
		t.list(t.rule().priorityHas(halfBlock-1), c).forget(t.affinity).comment("it is gone"))
}

func (t *table) idChain(c class) *chain {
	m := t.frontends(c.nodePort)
	return t.chain(toID+c.list(),
		t.rule().frontend(m).priority().priorityBy(m.ids).comment("the endpoint in the slot"),
		t.rule().priorityIsSlot().chooseSlot(way{}, 1, firstSlot(c.scope)).
			frontend(m).priority().priorityBy(m.ids).comment(overtaken))
}

func (t *table) chosenChain(c class) *chain {
	m := t.frontends(c.nodePort)
	return t.chain(toChosen+c.list(),
		t.rule().load(true).priority().bits(listMask, 0).priorityBy(t.affinity).comment("another packet may have been faster"),
		t.rule().jump(m.dnat).comment("to the endpoint that was chosen"),
		t.rule().chooseSlot(way{}, 1, firstSlot(c.scope)).
			frontend(m).priority().priorityBy(m.ids).goTo(m.dnat).comment(overtaken))
}
