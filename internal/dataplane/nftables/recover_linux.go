package nftables

import (
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
