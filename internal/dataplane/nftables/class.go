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
	large      bool          // the ids of the endpoints are in a large block
	masquerade bool
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

// block is list, with the size of the blocks of ids.
func (c class) block() string {
	if c.large {
		return c.list() + "-large"
	}
	return c.list()
}

// chain returns the name of the class's chain.
func (c class) chain() string {
	name := fmt.Sprintf("%s-%d", c.list(), c.count)
	if c.timeout > 0 {
		name = fmt.Sprintf("%s-%d-%v", c.block(), c.count, c.timeout)
	}
	if c.masquerade {
		return "masq-" + name
	}
	return name
}

// verdict returns where packets of the class go.
func (c class) verdict() nft.Verdict {
	if c.count == 0 {
		return nft.Verdict{Code: nft.Accept}
	}
	return nft.Verdict{Code: nft.Goto, Chain: c.chain()}
}

// classes are the classes of a table: their numbers, and how many elements
// lead to each.
type classes struct {
	numbers map[class]uint32
	taken   map[uint32]bool // the numbers that classes have, or had in a former process
	uses    map[class]int
	written map[class]bool
	unused  map[class]time.Time // written, and since when nothing leads to it
	next    uint32
	found   map[nft.Verdict]uint32 // numbers that a former process gave
}

func newClasses() *classes {
	return &classes{
		numbers: map[class]uint32{}, taken: map[uint32]bool{}, uses: map[class]int{}, written: map[class]bool{},
		unused: map[class]time.Time{}, next: firstClass, found: map[nft.Verdict]uint32{},
	}
}

// recover takes over the numbers in the kernel.
func (cs *classes) recover(e nft.Element) {
	n, ok := word(e.Key)
	if !ok || n < firstClass || n >= slots {
		return
	}
	if _, known := cs.found[e.Verdict]; !known {
		cs.found[e.Verdict], cs.taken[n] = n, true
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
	n, ok := cs.found[c.verdict()]
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
	if n++; firstClass <= n && n < slots {
		return n
	}
	return firstClass
}

// element returns the element that leads from a class's number to its chain.
func (cs *classes) element(c class) nft.Element {
	return nft.Element{Key: string(hostWord(cs.number(c))), Verdict: c.verdict()}
}

// use changes how many elements lead to a class.
func (cs *classes) use(c class, by int) {
	if cs.uses[c] += by; cs.uses[c] > 0 {
		delete(cs.unused, c)
		return
	}
	delete(cs.uses, c)
	cs.unused[c] = time.Now()
}

// forget drops a class that the kernel does not have any more.
func (cs *classes) forget(c class) {
	delete(cs.found, c.verdict())
	delete(cs.taken, cs.numbers[c])
	delete(cs.numbers, c)
	delete(cs.written, c)
	delete(cs.unused, c)
}

// Classes that nothing leads to are kept: a Service whose endpoints come and go
// will need them again. Above maxUnused, those go to which nothing led for
// unusedTime, which is far longer than a packet takes from the number to the chain.
const (
	maxUnused  = 128
	unusedTime = time.Minute
)

// excess returns the classes that shall go.
func (cs *classes) excess() (out []class) {
	if len(cs.unused) <= maxUnused {
		return nil
	}
	for c, since := range cs.unused {
		if time.Since(since) >= unusedTime {
			out = append(out, c)
		}
	}
	return out
}
