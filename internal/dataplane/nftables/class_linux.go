package nftables

import (
	"fmt"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// class is all that the rules depend on by which an endpoint is chosen. The
// maps of frontends hold a class's number, which is data, and one small map
// leads from numbers to chains: when an element with a chain is added, the
// kernel checks every such element of the table.
type class struct {
	nodePort   bool
	scope      proxy.Scope
	count      int           // of endpoints; 0: there is none, and the packet stays as it is
	timeout    time.Duration // how long a client is remembered; 0: not at all
	masquerade bool
	way        way  // how one of several endpoints is chosen
	taken      bool // by the overlay, which chooses
}

// list names the maps and the list that are chosen from.
func (c class) list() string {
	name := "lb"
	if c.nodePort {
		name = "np"
	}
	if c.scope == proxy.ScopeLocal {
		name += "-local"
	}
	return name
}

func (c class) chain() string {
	name := fmt.Sprintf("%s-%d", c.list(), c.count)
	if c.taken {
		name = toTaken + c.list()
	}
	if c.timeout > 0 {
		name += "-" + c.timeout.String()
	}
	name += c.way.suffix()
	if c.masquerade {
		return "masq-" + name
	}
	return name
}

// leadsTo returns the chain where packets of the class go; empty: nowhere.
func (c class) leadsTo() string {
	if c.count == 0 && !c.taken {
		return ""
	}
	return c.chain()
}

// classes are the classes of a table and their numbers.
type classes struct {
	numbers map[class]uint32
	taken   map[uint32]bool // the numbers that classes have, or had in a former process
	next    uint32
	found   map[string]uint32  // numbers that a former process gave, by chain
	objects map[class][]object // of those with a number
}

func newClasses() *classes {
	return &classes{
		numbers: map[class]uint32{}, taken: map[uint32]bool{}, next: firstClass,
		found: map[string]uint32{}, objects: map[class][]object{},
	}
}

// recover takes over the numbers in the kernel.
func (cs *classes) recover(e nft.Element) {
	n, ok := word(e.Key)
	if !ok || n < firstClass || n >= firstClass+toClusterIP {
		return
	}
	if _, known := cs.found[e.Verdict.Chain]; !known {
		cs.found[e.Verdict.Chain], cs.taken[n] = n, true
	}
	if n >= cs.next {
		cs.next = after(n)
	}
}

// number returns a class's number. A new class gets one that no packet on its
// way can still carry.
func (cs *classes) number(c class) uint32 {
	if n, ok := cs.numbers[c]; ok {
		return n
	}
	n, ok := cs.found[c.leadsTo()]
	for !ok {
		n, cs.next = cs.next, after(cs.next)
		ok = !cs.taken[n]
	}
	cs.numbers[c], cs.taken[n] = n, true
	return n
}

// after returns the number to be given after another one. They are all given
// before one is given again.
func after(n uint32) uint32 {
	if n++; firstClass <= n && n < firstClass+toClusterIP {
		return n
	}
	return firstClass
}

// forget drops a class that the kernel does not have any more.
func (cs *classes) forget(c class) {
	delete(cs.found, c.leadsTo())
	delete(cs.taken, cs.numbers[c])
	delete(cs.numbers, c)
	delete(cs.objects, c)
}

// classElement is what leads from a class's number to its chain.
func (t *table) classElement(c class) id {
	return id{anElement, t, t.classSet, string(hostWord(t.classes.number(c)))}
}

// classObjects returns what makes a class: the element that its number leads to,
// and chains.
func (t *table) classObjects(c class) []object {
	if have := t.classes.objects[c]; have != nil {
		return have
	}
	chains := t.classChains(c)
	own := &chain{class: c}
	if len(chains) > 0 {
		own = chains[0]
	}
	out := []object{{t.classElement(c), value{c.leadsTo(), own}}}
	for _, made := range chains {
		out = append(out, object{id{kind: aChain, t: t, key: made.Name}, value{chain: made}})
	}
	t.classes.objects[c] = out
	return out
}
