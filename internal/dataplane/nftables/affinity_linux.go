package nftables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Endpoints of rows with session affinity have ids. A client is remembered, in
// one map for all, under its address and the number of the list of endpoints
// that it used. The id that is found there leads to the endpoint; that of an
// endpoint that left leads nowhere. Then what the row's other list remembers is
// tried, and only then is the client balanced anew.
//
// A row has a block of ids, whose first half is for its Cluster list and the
// second for its Local list. The first id of a half is the list's number, so
// that a mask makes it from any id: a packet has one word to carry either. An
// endpoint of both lists has the same place in both halves, so that one bit makes
// its id in one list from that in the other.
const (
	scratchBit = 1 << 31                    // set in all that we put into a packet's priority
	firstClass = scratchBit + 1<<30 + 1<<29 // what is no id: numbers of classes
	slots      = firstClass + 1<<28         // and slots
	localSlots = slots + 1<<27
	halfBlock  = 1 << 14
	blockSize  = 2 * halfBlock
	blockCount = (firstClass - scratchBit) / blockSize // 49,152
	// maxEndpoints bounds a row: half of the ids remain, so that one is not given
	// again soon, and a row whose endpoints are replaced has ids for the old and the
	// new ones. The first id of a half is no endpoint's.
	maxEndpoints = (halfBlock - 1) / 2
	// listMask makes the number of its list from an id.
	listMask = ^uint32(halfBlock - 1)
)

// block is the ids of a row.
type block struct {
	base   uint32
	places map[netip.AddrPort]place
	used   map[uint32]bool // by place
	last   uint32          // the place given last
}

// place is where an endpoint's ids are, counted from the number of a list, and
// which lists have it.
type place struct {
	at uint32
	in [2]bool // by scope
}

// blocks are the blocks of a table.
type blocks struct {
	byRow map[proxy.PortKey]*block
	taken map[uint32]bool // by base
	next  uint32          // where to look for a free one
}

func newBlocks() *blocks {
	return &blocks{byRow: map[proxy.PortKey]*block{}, taken: map[uint32]bool{}, next: scratchBit}
}

// of returns a row's block, or nil if it has no session affinity.
func (bs *blocks) of(sp *proxy.ServicePort) (*block, error) {
	if sp.Affinity == 0 {
		return nil, nil
	}
	if n := endpoints(sp); n > maxEndpoints {
		return nil, fmt.Errorf("%d endpoints are too many for session affinity, which takes %d", n, maxEndpoints)
	}
	if b := bs.byRow[sp.Key]; b != nil {
		return b, nil
	}
	for range blockCount {
		base := bs.next // no row had it recently
		if bs.next += blockSize; bs.next == firstClass {
			bs.next = scratchBit
		}
		if !bs.taken[base] {
			return bs.add(sp.Key, base), nil
		}
	}
	return nil, errors.New("too many Services with session affinity")
}

// endpoints returns how many endpoints a row has. Those of both lists are told
// from others only where that may matter.
func endpoints(sp *proxy.ServicePort) int {
	n := len(sp.Cluster) + len(sp.Local)
	if n <= maxEndpoints {
		return n
	}
	return len(proxy.AddressesOf(sp.Cluster, sp.Local))
}

func (bs *blocks) add(key proxy.PortKey, base uint32) *block {
	b := &block{base: base, places: map[netip.AddrPort]place{}, used: map[uint32]bool{}}
	bs.byRow[key], bs.taken[base] = b, true
	return b
}

func (bs *blocks) remove(key proxy.PortKey) {
	if b := bs.byRow[key]; b != nil {
		delete(bs.taken, b.base)
		delete(bs.byRow, key)
	}
}

// trim drops the ids that a row does not have, and its block if the row, which
// may be nil, has none.
func (bs *blocks) trim(key proxy.PortKey, sp *proxy.ServicePort) {
	b := bs.byRow[key]
	if b == nil {
		return
	}
	if sp == nil || sp.Affinity == 0 {
		bs.remove(key)
		return
	}
	for _, scope := range scopes {
		here := proxy.AddressesOf(sp.List(scope))
		for a, p := range b.places {
			if p.in[scope] && !here[a] {
				b.drop(scope, a)
			}
		}
	}
}

// number returns the number of a list.
func (b *block) number(scope proxy.Scope) uint32 { return b.base + uint32(scope)*halfBlock }

// id returns an endpoint's id in a list. It keeps it for as long as a list has it.
func (b *block) id(scope proxy.Scope, a netip.AddrPort) uint32 {
	p, ok := b.places[a]
	if !ok {
		p.at = b.free()
		b.used[p.at] = true
	}
	if !p.in[scope] {
		p.in[scope] = true
		b.places[a] = p
	}
	return b.number(scope) + p.at
}

// free returns a place that no endpoint has.
func (b *block) free() uint32 {
	for {
		b.last = (b.last + 1) % halfBlock
		if b.last != 0 && !b.used[b.last] {
			return b.last
		}
	}
}

// drop says that a list does not have an endpoint any more. Its place is given
// back when no list has it.
func (b *block) drop(scope proxy.Scope, a netip.AddrPort) {
	p := b.places[a]
	if p.in[scope] = false; p.in != [2]bool{} {
		b.places[a] = p
		return
	}
	delete(b.used, p.at)
	delete(b.places, a)
}

// skip goes to where the most places are free. One is given again only after all
// others, but which ones a former process gave last is not known. A client of
// an endpoint that left then may be sent to the one that gets its place, instead of
// to any.
func (b *block) skip() {
	used := slices.Sorted(maps.Keys(b.used))
	longest := uint32(0)
	for i, at := range used {
		gap := halfBlock + used[0] - at // to the first one, around the end
		if i+1 < len(used) {
			gap = used[i+1] - at
		}
		if gap > longest {
			longest, b.last = gap, at
		}
	}
}

// recovery takes over the numbers that a former process gave, so that clients
// keep the endpoints they are remembered for. Later it is memory that counts:
// what others wrote into the kernel is undone.
type recovery struct {
	t      *table
	owners map[frontID]*proxy.ServicePort // of frontends with session affinity
}

// newRecovery returns nil if there is nothing to take over any more.
func (t *table) newRecovery(want *proxy.State) *recovery {
	if t.recovered {
		return nil
	}
	r := &recovery{t, map[frontID]*proxy.ServicePort{}}
	for key, sp := range want.Rows {
		if key.Family != t.family || sp.Affinity == 0 {
			continue
		}
		for _, f := range sp.Frontends {
			m := t.frontends(f.Kind == proxy.NodePort)
			r.owners[frontID{m, m.key(key.Protocol, f.Addr)}] = sp
		}
	}
	return r
}

// recoveryOrder returns all sets, those first that say whose ids are whose.
func (t *table) recoveryOrder() []*nft.Set {
	return append([]*nft.Set{t.addresses.lists, t.nodePorts.lists},
		slices.DeleteFunc(t.sets(), func(s *nft.Set) bool { return s == t.addresses.lists || s == t.nodePorts.lists })...)
}

// element takes over what an element of the kernel says.
func (r *recovery) element(s *nft.Set, e nft.Element) {
	if r == nil || e.Key == "" {
		return
	}
	if s == r.t.classSet {
		r.t.classes.recover(e)
	}
	for _, m := range []*frontendMaps{&r.t.addresses, &r.t.nodePorts} {
		switch s {
		case m.lists:
			r.block(r.owners[frontID{m, e.Key}], e.Data)
		case m.endpoints:
			front, id := e.Key[:len(e.Key)-4], e.Key[len(e.Key)-4:]
			r.id(r.owners[frontID{m, front}], id, e.Data)
		}
	}
}

// block gives a row the block that the kernel has for one of its frontends.
func (r *recovery) block(sp *proxy.ServicePort, data string) {
	base, ok := word(data)
	if bs := r.t.blocks; sp != nil && ok && !bs.taken[base] && bs.byRow[sp.Key] == nil &&
		scratchBit <= base && base < firstClass && base%blockSize == 0 {
		bs.add(sp.Key, base)
	}
}

// id gives an endpoint of a row the id that the kernel has for it.
func (r *recovery) id(sp *proxy.ServicePort, idWord, data string) {
	id, ok := word(idWord)
	addr, isEndpoint := dataEndpoint(data)
	if sp == nil || !ok || !isEndpoint {
		return
	}
	b := r.t.blocks.byRow[sp.Key]
	if b == nil || id < b.base || id-b.base >= blockSize || id%halfBlock == 0 {
		return
	}
	scope, at := (id-b.base)/halfBlock, id%halfBlock
	if p, known := b.places[addr]; known && p.at == at || !known && !b.used[at] {
		p.at, p.in[scope] = at, true
		b.places[addr], b.used[at] = p, true
	}
}

// dataEndpoint reads what endpointData writes.
func dataEndpoint(data string) (netip.AddrPort, bool) {
	n := len(data) - 4
	if n < 0 {
		return netip.AddrPort{}, false
	}
	addr, ok := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(addr, uint16(data[n])<<8|uint16(data[n+1])), ok
}

// end says that there are no more elements. Which blocks a former process gave to
// rows that are gone is not known, and their clients may still be remembered: where
// to look for a free one is up to chance.
func (r *recovery) end() {
	if r == nil {
		return
	}
	r.t.blocks.next = scratchBit + rand.Uint32N(blockCount)*blockSize
	for _, b := range r.t.blocks.byRow {
		b.skip()
	}
}
