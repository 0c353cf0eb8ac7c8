package nftables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Endpoints of rows with session affinity have ids. A client is remembered, in
// one map for all, under its address and the number of the list of endpoints
// that it used. The id that is found there leads to the endpoint; that of an
// endpoint that left leads nowhere, and the client is balanced anew.
//
// A row has a block of ids, whose first half is for its Cluster list and the
// second for its Local list. The first id of a half is the list's number, so
// that a mask makes it from any id: a packet has one word to carry either.
const (
	scratchBit = 1 << 31                    // set in all that we put into a packet's priority
	firstClass = scratchBit + 1<<30 + 1<<29 // what is no id: numbers of classes
	slots      = firstClass + 1<<28         // and slots
	localSlots = slots + 1<<27
	halfBlock  = 1 << 14
	blockSize  = 2 * halfBlock // there are 49,152 of them
	// maxList bounds a list: half of the ids remain, so that one is not given
	// again soon, and a list that is replaced has ids for its old and its new
	// endpoints. The first id of a half is no endpoint's.
	maxList = (halfBlock - 1) / 2
	// listMask makes the number of its list from an id.
	listMask = ^uint32(halfBlock - 1)
)

// block is the ids of a row.
type block struct {
	base  uint32
	lists [2]idList // by scope
}

// idList is the ids of one list.
type idList struct {
	ids  map[netip.AddrPort]uint32
	used map[uint32]bool
	last uint32 // the id given last, counted from the list's number
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
	if n := max(len(sp.Cluster), len(sp.Local)); n > maxList {
		return nil, fmt.Errorf("%d endpoints are too many for session affinity, which takes %d", n, maxList)
	}
	if b := bs.byRow[sp.Key]; b != nil {
		return b, nil
	}
	for range (firstClass - scratchBit) / blockSize {
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

func (bs *blocks) add(key proxy.PortKey, base uint32) *block {
	b := &block{base: base}
	for scope := range b.lists {
		b.lists[scope] = idList{ids: map[netip.AddrPort]uint32{}, used: map[uint32]bool{}}
	}
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
		here := map[netip.AddrPort]bool{}
		for _, e := range sp.List(scope) {
			here[e.Addr] = true
		}
		for a := range b.lists[scope].ids {
			if !here[a] {
				b.drop(scope, a)
			}
		}
	}
}

// number returns the number of a list.
func (b *block) number(scope proxy.Scope) uint32 { return b.base + uint32(scope)*halfBlock }

// id returns an endpoint's id in a list. It keeps it for as long as it is there.
func (b *block) id(scope proxy.Scope, a netip.AddrPort) uint32 {
	l := &b.lists[scope]
	if id, ok := l.ids[a]; ok {
		return id
	}
	for {
		l.last = (l.last + 1) % halfBlock
		id := b.number(scope) + l.last
		if l.last != 0 && !l.used[id] {
			l.ids[a], l.used[id] = id, true
			return id
		}
	}
}

// drop takes an endpoint's id back.
func (b *block) drop(scope proxy.Scope, a netip.AddrPort) {
	l := &b.lists[scope]
	delete(l.used, l.ids[a])
	delete(l.ids, a)
}

// skip goes to where the most ids are free. An id is given again only after all
// others, but which ones a former process gave last is not known. A client of
// an endpoint that left then may be sent to the one that gets its id, instead of
// to any.
func (b *block) skip(scope proxy.Scope) {
	ids := slices.Sorted(maps.Keys(b.lists[scope].used))
	longest := uint32(0)
	for i, id := range ids {
		gap := halfBlock + ids[0] - id // to the first one, around the end
		if i+1 < len(ids) {
			gap = ids[i+1] - id
		}
		if gap > longest {
			longest, b.lists[scope].last = gap, id-b.number(scope)
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
	if r == nil {
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
	if l := &b.lists[(id-b.base)/halfBlock]; !l.used[id] && l.ids[addr] == 0 {
		l.ids[addr], l.used[id] = id, true
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

// end says that there are no more elements.
func (r *recovery) end() {
	if r == nil {
		return
	}
	for _, b := range r.t.blocks.byRow {
		for _, scope := range scopes {
			b.skip(scope)
		}
	}
}
