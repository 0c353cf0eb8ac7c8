package nftables

import (
	"errors"
	"fmt"
	"net/netip"

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
	scratchBit  = 1 << 31 // set in all that we put into a packet's priority
	smallBlocks = scratchBit
	largeBlocks = smallBlocks + 1<<30
	firstClass  = largeBlocks + 1<<29 // what is no id: numbers of classes
	slots       = firstClass + 1<<28  // and slots
	localSlots  = slots + 1<<27
	smallHalf   = 1 << 11
	largeHalf   = 1 << 17
	// smallLists bounds the lists in small blocks: half of the ids remain, so
	// that one is not given again soon, and a list that is replaced has ids for
	// its old and its new endpoints. The first id of a half is no endpoint's.
	smallLists = (smallHalf - 1) / 2
	largeLists = (largeHalf - 1) / 2
)

// half returns the number of ids in half a block.
func half(large bool) uint32 {
	if large {
		return largeHalf
	}
	return smallHalf
}

func blockSize(large bool) uint32 { return 2 * half(large) }

// block is the ids of a row.
type block struct {
	base  uint32
	half  uint32
	lists [2]idList // by scope
}

// idList is the ids of one list.
type idList struct {
	ids  map[netip.AddrPort]uint32
	used map[uint32]bool
	last uint32 // the id given last, counted from the list's number
}

// blockKey tells blocks apart. While a row moves to a larger block it has two.
type blockKey struct {
	proxy.PortKey
	large bool
}

// blocks are the blocks of a table.
type blocks struct {
	byRow map[blockKey]*block
	taken map[uint32]bool // by base
	next  map[bool]uint32 // by size: where to look for a free one
}

func newBlocks() *blocks {
	return &blocks{
		byRow: map[blockKey]*block{}, taken: map[uint32]bool{},
		next: map[bool]uint32{false: smallBlocks, true: largeBlocks},
	}
}

// of returns a row's block, or nil if it has no session affinity.
func (bs *blocks) of(sp *proxy.ServicePort) (*block, error) {
	if sp == nil || sp.Affinity == 0 {
		return nil, nil
	}
	key := keyOfBlock(sp)
	if b := bs.byRow[key]; b != nil {
		return b, nil
	}
	if n := max(len(sp.Cluster), len(sp.Local)); n > largeLists {
		return nil, fmt.Errorf("%d endpoints are too many for session affinity, which takes %d", n, largeLists)
	}
	base, err := bs.free(key.large)
	if err != nil {
		return nil, err
	}
	return bs.add(key, base), nil
}

func keyOfBlock(sp *proxy.ServicePort) blockKey {
	return blockKey{sp.Key, max(len(sp.Cluster), len(sp.Local)) > smallLists}
}

// free returns the base of a block that no row has, and none had recently.
func (bs *blocks) free(large bool) (uint32, error) {
	first, end := blockRange(large)
	for range (end - first) / blockSize(large) {
		base := bs.next[large]
		if bs.next[large] += blockSize(large); bs.next[large] == end {
			bs.next[large] = first
		}
		if !bs.taken[base] {
			return base, nil
		}
	}
	return 0, errors.New("too many Services with session affinity")
}

// blockRange returns where blocks of a size begin, and end.
func blockRange(large bool) (first, end uint32) {
	if large {
		return largeBlocks, firstClass
	}
	return smallBlocks, largeBlocks
}

func (bs *blocks) add(key blockKey, base uint32) *block {
	b := &block{base: base, half: half(key.large)}
	for scope := range b.lists {
		b.lists[scope] = idList{ids: map[netip.AddrPort]uint32{}, used: map[uint32]bool{}}
	}
	bs.byRow[key], bs.taken[base] = b, true
	return b
}

func (bs *blocks) remove(key blockKey) {
	if b := bs.byRow[key]; b != nil {
		delete(bs.taken, b.base)
		delete(bs.byRow, key)
	}
}

// number returns the number of a list.
func (b *block) number(scope proxy.Scope) uint32 {
	if scope == proxy.ScopeLocal {
		return b.base + b.half
	}
	return b.base
}

// id returns an endpoint's id in a list. It keeps it for as long as it is there.
func (b *block) id(scope proxy.Scope, a netip.AddrPort) uint32 {
	l := &b.lists[scope]
	if id, ok := l.ids[a]; ok {
		return id
	}
	for {
		l.last = (l.last + 1) % b.half
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
