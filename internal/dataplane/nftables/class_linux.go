package nftables

import (
	"fmt"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// class is everything that the rules for choosing an endpoint depend on. The maps of
// frontends contain the number of a class as plain data, and one small map maps numbers
// to chains: when an element with a chain is added, the kernel checks every such element
// of the table.
type class struct {
	nodePort   bool
	scope      proxy.Scope
	count      int           // number of endpoints; 0: the packet is accepted untranslated
	timeout    time.Duration // how long a client is remembered; 0: no session affinity
	masquerade bool
	method     balancingMethod
	taken      bool // the overlay chooses the endpoint
}

// list returns the name of the list that is chosen from, as chains' names contain it: lb
// for frontends with an address, np for NodePorts, with -local for the Local list.
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

// chain returns the name of the class's chain.
func (c class) chain() string {
	name := fmt.Sprintf("%s-%d", c.list(), c.count)
	if c.taken {
		name = takenPrefix + c.list()
	}
	if c.timeout > 0 {
		name += "-" + c.timeout.String()
	}
	name += c.method.suffix()
	if c.masquerade {
		return "masq-" + name
	}
	return name
}

// target returns the chain that packets of the class go to; empty if they are accepted.
func (c class) target() string {
	if c.count == 0 && !c.taken {
		return ""
	}
	return c.chain()
}

// classes assigns numbers to the classes of a table.
type classes struct {
	numbers   map[class]uint32
	taken     map[uint32]bool // numbers in use, by us or by a former process
	next      uint32
	recovered map[string]uint32  // numbers that a former process assigned, by chain
	objects   map[class][]object // cached by classObjects
}

func newClasses() *classes {
	return &classes{
		numbers: map[class]uint32{}, taken: map[uint32]bool{}, next: firstClass,
		recovered: map[string]uint32{}, objects: map[class][]object{},
	}
}

// recover takes over the number of an element of @classes that the kernel has.
func (cs *classes) recover(e nft.Element) {
	n, ok := parseHostWord(e.Key)
	if !ok || n < firstClass || n >= firstClass+clusterIPFlag {
		return
	}
	if _, known := cs.recovered[e.Verdict.Chain]; !known {
		cs.recovered[e.Verdict.Chain], cs.taken[n] = n, true
	}
	if n >= cs.next {
		cs.next = nextClassNumber(n)
	}
}

// number returns a class's number. Numbers are assigned in turn, so the number of a new
// class is one that no packet in flight still carries.
func (cs *classes) number(c class) uint32 {
	if n, ok := cs.numbers[c]; ok {
		return n
	}
	n, ok := cs.recovered[c.target()]
	for !ok {
		n, cs.next = cs.next, nextClassNumber(cs.next)
		ok = !cs.taken[n]
	}
	cs.numbers[c], cs.taken[n] = n, true
	return n
}

// nextClassNumber returns the number to try after n. All numbers are tried before one is
// reused.
func nextClassNumber(n uint32) uint32 {
	if n++; firstClass <= n && n < firstClass+clusterIPFlag {
		return n
	}
	return firstClass
}

// forget releases the number of a class that the kernel no longer has.
func (cs *classes) forget(c class) {
	delete(cs.recovered, c.target())
	delete(cs.taken, cs.numbers[c])
	delete(cs.numbers, c)
	delete(cs.objects, c)
}

// classElement returns the ID of the element that maps a class's number to its chain.
func (t *table) classElement(c class) id {
	return id{kindElement, t, t.classSet, string(hostWord(t.classes.number(c)))}
}

// classObjects returns the objects of a class: its element of @classes and its chains.
func (t *table) classObjects(c class) []object {
	if have := t.classes.objects[c]; have != nil {
		return have
	}
	chains := t.classChains(c)
	own := &chain{class: c}
	if len(chains) > 0 {
		own = chains[0]
	}
	out := []object{{t.classElement(c), value{c.target(), own}}}
	for _, made := range chains {
		out = append(out, object{id{kind: kindChain, t: t, key: made.Name}, value{chain: made}})
	}
	t.classes.objects[c] = out
	return out
}
