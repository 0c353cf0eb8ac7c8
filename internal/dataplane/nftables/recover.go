package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// recover takes over the numbers that a former process gave, so that clients
// keep the endpoints they are remembered for. Later it is memory that counts:
// what others wrote into the kernel is undone.
func (w *writer) recover(rows []*proxy.ServicePort, l *nft.Listing) {
	if w.t.recovered {
		return
	}
	w.each(w.t.classSet, l, w.t.classes.recover)
	owners := w.t.affinityFrontends(rows)
	for _, m := range []*frontendMaps{&w.t.addresses, &w.t.nodePorts} {
		if len(owners[m]) == 0 {
			continue
		}
		w.each(m.lists, l, func(e nft.Element) { w.t.blocks.recover(owners[m][e.Key], e.Data) })
		w.each(m.endpoints, l, func(e nft.Element) {
			front, id := e.Key[:len(e.Key)-4], e.Key[len(e.Key)-4:]
			w.t.blocks.recoverID(owners[m][front], id, e.Data)
		})
	}
	for _, b := range w.t.blocks.byRow {
		for _, scope := range scopes {
			b.lists[scope].last = longestGap(b.lists[scope].used, b.number(scope), b.half)
		}
	}
	w.t.recovered = w.err == nil
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

// each lists a set's elements, if it is there.
func (w *writer) each(s *nft.Set, l *nft.Listing, f func(nft.Element)) {
	if _, ok := l.Sets[s.Name]; ok && w.err == nil {
		w.err = w.conn.Elements(w.ctx, s, f)
	}
}

// affinityFrontends returns, by its key in its maps, whose frontend is whose, of
// rows with session affinity.
func (t *table) affinityFrontends(rows []*proxy.ServicePort) map[*frontendMaps]map[string]*proxy.ServicePort {
	out := map[*frontendMaps]map[string]*proxy.ServicePort{&t.addresses: {}, &t.nodePorts: {}}
	for _, sp := range rows {
		if sp.Affinity == 0 {
			continue
		}
		for _, f := range sp.Frontends {
			m := t.frontends(f.Kind == proxy.NodePort)
			out[m][m.key(sp.Key.Protocol, f.Addr)] = sp
		}
	}
	return out
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
