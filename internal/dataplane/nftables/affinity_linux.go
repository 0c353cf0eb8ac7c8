package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Endpoints of rows with session affinity have ids. The map @affinity remembers clients of
// all rows: its key is the client's address and the number of the list of endpoints that it
// used, its value the id of the endpoint. The id of an endpoint that was removed matches
// no element of the map of endpoints; then the entry for the row's other list is tried, and
// finally a new endpoint is chosen.
//
// A row has a block of ids; the first half is for its Cluster list and the second for its
// Local list. The first id of a half is the list's number, so a mask computes it from any
// id: a packet has only one word to carry either. An endpoint in both lists has the same
// offset in both halves, so its ids differ in one bit.
const (
	scratchBit = 1 << 31                    // set in every value that we put into a packet's priority
	firstClass = scratchBit + 1<<30 + 1<<29 // above all ids: numbers of classes
	slots      = firstClass + 1<<28         // and of slots
	localSlots = slots + 1<<27
	halfBlock  = 1 << 14
	blockSize  = 2 * halfBlock
	blockCount = (firstClass - scratchBit) / blockSize // 49,152
	// maxEndpoints bounds a row with session affinity. Half of its ids remain free, so that
	// none is reused soon and, when all endpoints are replaced, there are ids for the old and
	// the new ones. The first id of a half is not an endpoint's.
	maxEndpoints = (halfBlock - 1) / 2
	// listMask computes the number of the list from an id.
	listMask = ^uint32(halfBlock - 1)
)

// block is the ids of a row.
type block struct {
	base      uint32 // the first id, which is the number of the Cluster list
	positions map[netip.AddrPort]position
	used      map[uint32]bool // by offset
	last      uint32          // the offset assigned last
}

// position says which ids an endpoint has: their offset from the numbers of the lists, and
// the lists that contain the endpoint.
type position struct {
	offset uint32
	in     [2]bool // by scope
}

// blocks assigns blocks of ids to the rows of a table.
type blocks struct {
	byRow map[proxy.PortKey]*block
	taken map[uint32]bool // by base
	next  uint32          // the base at which the search for a free block starts
}

func newBlocks() *blocks {
	return &blocks{byRow: map[proxy.PortKey]*block{}, taken: map[uint32]bool{}, next: scratchBit}
}

// ensure returns a row's block, and assigns one if it has none yet. It returns nil if the
// row has no session affinity.
func (bs *blocks) ensure(sp *proxy.ServicePort) (*block, error) {
	if sp.Affinity == 0 {
		return nil, nil
	}
	if n := countEndpoints(sp); n > maxEndpoints {
		return nil, fmt.Errorf("%d endpoints are too many for session affinity, the maximum is %d", n, maxEndpoints)
	}
	if b := bs.byRow[sp.Key]; b != nil {
		return b, nil
	}
	for range blockCount {
		base := bs.next // blocks are assigned in turn, so that none is reused soon
		if bs.next += blockSize; bs.next == firstClass {
			bs.next = scratchBit
		}
		if !bs.taken[base] {
			return bs.add(sp.Key, base), nil
		}
	}
	return nil, fmt.Errorf("too many service ports with session affinity, the maximum is %d", blockCount)
}

// countEndpoints returns the number of different endpoints of a row if it exceeds
// maxEndpoints. Otherwise it may count endpoints in both lists twice, which is cheaper.
func countEndpoints(sp *proxy.ServicePort) int {
	n := len(sp.Cluster) + len(sp.Local)
	if n <= maxEndpoints {
		return n
	}
	return len(proxy.AddressesOf(sp.Cluster, sp.Local))
}

func (bs *blocks) add(key proxy.PortKey, base uint32) *block {
	b := &block{base: base, positions: map[netip.AddrPort]position{}, used: map[uint32]bool{}}
	bs.byRow[key], bs.taken[base] = b, true
	return b
}

func (bs *blocks) remove(key proxy.PortKey) {
	if b := bs.byRow[key]; b != nil {
		delete(bs.taken, b.base)
		delete(bs.byRow, key)
	}
}

// trim releases the ids of endpoints that a row no longer has, and its block if the row is
// nil or has no session affinity.
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
		for a, p := range b.positions {
			if p.in[scope] && !here[a] {
				b.release(scope, a)
			}
		}
	}
}

// number returns the number of a list.
func (b *block) number(scope proxy.Scope) uint32 { return b.base + uint32(scope)*halfBlock }

// id returns an endpoint's id in a list, and assigns one if it has none yet. The endpoint
// keeps it until no list has it.
func (b *block) id(scope proxy.Scope, a netip.AddrPort) uint32 {
	p, ok := b.positions[a]
	if !ok {
		p.offset = b.nextFree()
		b.used[p.offset] = true
	}
	if !p.in[scope] {
		p.in[scope] = true
		b.positions[a] = p
	}
	return b.number(scope) + p.offset
}

// nextFree returns an offset that no endpoint has. There is one, because of maxEndpoints.
func (b *block) nextFree() uint32 {
	for {
		b.last = (b.last + 1) % halfBlock
		if b.last != 0 && !b.used[b.last] {
			return b.last
		}
	}
}

// release records that a list no longer has an endpoint. Its offset becomes free when
// neither list has it.
func (b *block) release(scope proxy.Scope, a netip.AddrPort) {
	p := b.positions[a]
	if p.in[scope] = false; p.in != [2]bool{} {
		b.positions[a] = p
		return
	}
	delete(b.used, p.offset)
	delete(b.positions, a)
}

// skipToLargestGap makes the next offset be the first one of the largest free range. An
// offset is reused only after all others, but which ones a former process assigned last is not
// known, and a client that is remembered for a removed endpoint would be sent to the endpoint
// that gets its offset. The largest gap makes that least likely.
func (b *block) skipToLargestGap() {
	used := slices.Sorted(maps.Keys(b.used))
	longest := uint32(0)
	for i, at := range used {
		gap := halfBlock + used[0] - at // wraps around to the first used offset
		if i+1 < len(used) {
			gap = used[i+1] - at
		}
		if gap > longest {
			longest, b.last = gap, at
		}
	}
}

// recovery takes over the numbers that a former process assigned, so that clients keep
// the endpoints that are remembered for them. It happens once: afterwards our memory is
// authoritative, and what others write into the kernel is undone. A nil recovery does nothing.
type recovery struct {
	t      *table
	owners map[frontendKey]*proxy.ServicePort // rows with session affinity, by frontend
}

// newRecovery returns nil if the numbers have been taken over already.
func (t *table) newRecovery(want *proxy.State) *recovery {
	if t.recovered {
		return nil
	}
	r := &recovery{t, map[frontendKey]*proxy.ServicePort{}}
	for key, sp := range want.Rows {
		if key.Family != t.family || sp.Affinity == 0 {
			continue
		}
		for _, f := range sp.Frontends {
			m := t.mapsFor(f.Kind == proxy.NodePort)
			r.owners[frontendKey{m, m.key(key.Protocol, f.Addr)}] = sp
		}
	}
	return r
}

// recoveryOrder returns all sets, starting with those that say which row has which block
// of ids.
func (t *table) recoveryOrder() []*nft.Set {
	return append([]*nft.Set{t.addresses.lists, t.nodePorts.lists},
		slices.DeleteFunc(t.sets(), func(s *nft.Set) bool { return s == t.addresses.lists || s == t.nodePorts.lists })...)
}

// element takes over the numbers in an element that the kernel has.
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
			r.block(r.owners[frontendKey{m, e.Key}], e.Data)
		case m.endpoints:
			front, id := e.Key[:len(e.Key)-4], e.Key[len(e.Key)-4:]
			r.id(r.owners[frontendKey{m, front}], id, e.Data)
		}
	}
}

// block assigns to a row the block that the kernel has for one of its frontends, unless the
// row has one or data is not a valid block.
func (r *recovery) block(sp *proxy.ServicePort, data string) {
	base, ok := parseHostWord(data)
	if bs := r.t.blocks; sp != nil && ok && !bs.taken[base] && bs.byRow[sp.Key] == nil &&
		scratchBit <= base && base < firstClass && base%blockSize == 0 {
		bs.add(sp.Key, base)
	}
}

// id assigns to an endpoint of a row the id that the kernel has for it, unless it
// conflicts with another one.
func (r *recovery) id(sp *proxy.ServicePort, idWord, data string) {
	id, ok := parseHostWord(idWord)
	addr, isEndpoint := parseEndpointData(data)
	if sp == nil || !ok || !isEndpoint {
		return
	}
	b := r.t.blocks.byRow[sp.Key]
	if b == nil || id < b.base || id-b.base >= blockSize || id%halfBlock == 0 {
		return
	}
	scope, at := (id-b.base)/halfBlock, id%halfBlock
	if p, known := b.positions[addr]; known && p.offset == at || !known && !b.used[at] {
		p.offset, p.in[scope] = at, true
		b.positions[addr], b.used[at] = p, true
	}
}

// parseEndpointData is the inverse of endpointData; it reports false if data is not an
// endpoint.
func parseEndpointData(data string) (netip.AddrPort, bool) {
	n := len(data) - 4
	if n < 0 {
		return netip.AddrPort{}, false
	}
	addr, ok := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(addr, uint16(data[n])<<8|uint16(data[n+1])), ok
}

// finish completes the recovery after the last element. Which blocks a former process
// assigned to rows that no longer exist is not known, and clients may still be remembered for
// them, so the search for a free block starts at a random one.
func (r *recovery) finish() {
	if r == nil {
		return
	}
	r.t.blocks.next = scratchBit + rand.Uint32N(blockCount)*blockSize
	for _, b := range r.t.blocks.byRow {
		b.skipToLargestGap()
	}
}
