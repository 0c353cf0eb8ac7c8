package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

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
	for _, sp := range rowsOf(want, t.family) {
		if sp.Affinity == 0 {
			continue
		}
		for _, f := range sp.Frontends {
			m := t.frontends(f.Kind == proxy.NodePort)
			r.owners[frontID{m, m.key(sp.Key.Protocol, f.Addr)}] = sp
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
			r.t.blocks.recover(r.owners[frontID{m, e.Key}], e.Data)
		case m.endpoints:
			front, id := e.Key[:len(e.Key)-4], e.Key[len(e.Key)-4:]
			r.t.blocks.recoverID(r.owners[frontID{m, front}], id, e.Data)
		}
	}
}

// end says that there are no more elements.
func (r *recovery) end() {
	if r == nil {
		return
	}
	for _, b := range r.t.blocks.byRow {
		for _, scope := range scopes {
			b.lists[scope].last = longestGap(b.lists[scope].used, b.number(scope), b.half)
		}
	}
}

// longestGap returns the id, counted from the list's number, after which the
// most ids are free. An id is given again only after all others, but which ones
// a former process gave last is not known. A client of an endpoint that left
// then may be sent to the one that gets its id, instead of to any.
func longestGap(used map[uint32]bool, number, size uint32) (after uint32) {
	ids := slices.Sorted(maps.Keys(used))
	longest := uint32(0)
	for i, id := range ids {
		gap := size + ids[0] - id // to the first one, around the end
		if i+1 < len(ids) {
			gap = ids[i+1] - id
		}
		if gap > longest {
			longest, after = gap, id-number
		}
	}
	return after
}

// recover gives a row the block that the kernel has for one of its frontends.
func (bs *blocks) recover(sp *proxy.ServicePort, data string) {
	base, ok := word(data)
	if sp == nil || !ok || bs.taken[base] {
		return
	}
	key := keyOfBlock(sp)
	first, end := blockRange(key.large)
	if bs.byRow[key] == nil && first <= base && base < end && base%blockSize(key.large) == 0 {
		bs.add(key, base)
	}
}

// recoverID gives an endpoint of a row the id that the kernel has for it.
func (bs *blocks) recoverID(sp *proxy.ServicePort, idWord, data string) {
	id, ok := word(idWord)
	if sp == nil || !ok {
		return
	}
	b := bs.byRow[keyOfBlock(sp)]
	if b == nil || id <= b.base || id-b.base >= 2*b.half || (id-b.base)%b.half == 0 {
		return
	}
	scope := scopes[(id-b.base)/b.half]
	addr, ok := dataEndpoint(data)
	if l := &b.lists[scope]; ok && !l.used[id] && l.ids[addr] == 0 {
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

// keep drops the blocks and ids that no row has.
func (bs *blocks) keep(rows []*proxy.ServicePort) {
	wanted := map[blockKey]*proxy.ServicePort{}
	for _, sp := range rows {
		wanted[keyOfBlock(sp)] = sp
	}
	for key := range bs.byRow {
		bs.trim(key, wanted[key])
	}
}

// trim drops the ids of a block that a row does not have, and the block if the
// row, which may be nil, has another one or none.
func (bs *blocks) trim(key blockKey, sp *proxy.ServicePort) {
	b := bs.byRow[key]
	if b == nil {
		return
	}
	if sp == nil || sp.Affinity == 0 || keyOfBlock(sp) != key {
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
