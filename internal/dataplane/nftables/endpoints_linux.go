package nftables

import (
	"net/netip"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// listChange is how one of a row's lists of endpoints changes.
type listChange struct {
	scope proxy.Scope
	slots []int   // those in which the two differ
	sides [2]side // before and after
}

// side is one form of a row as far as a list is concerned.
type side struct {
	*form
	list  []proxy.Endpoint
	other *form
	put   func(id, value)
}

// changeEndpoints gives the difference between the endpoints of two forms of a
// row. They have the same block of ids, or none; either may be empty. What an
// endpoint that only changes its slot removes and adds is the same and cancels out.
func (t *table) changeEndpoints(was, is *form, out *changes) {
	for _, scope := range scopes {
		l := listChange{scope: scope, sides: [2]side{
			{was, was.list(scope), is, out.Remove}, {is, is.list(scope), was, out.Add},
		}}
		old, cur := l.sides[0].list, l.sides[1].list
		for i := range max(len(old), len(cur)) {
			if i >= len(old) || i >= len(cur) || old[i] != cur[i] {
				l.slots = append(l.slots, i)
			}
		}
		for _, s := range l.sides {
			s.putHairpins(t, l.slots)
			s.putEndpoints(t, &l)
		}
		if b := was.block; b != nil {
			gone := l.gone()
			out.Then(func(written bool) {
				for a := range gone {
					if written {
						b.drop(scope, a)
					}
				}
			})
		}
	}
}

func (f *form) list(scope proxy.Scope) []proxy.Endpoint {
	if f.sp == nil {
		return nil
	}
	return f.sp.List(scope)
}

// putHairpins puts the pods in some slots that may be sent to themselves.
func (s *side) putHairpins(t *table, slots []int) {
	if t.over.Sockets != nil {
		return // the program knows
	}
	for _, i := range slots {
		if i < len(s.list) && s.list[i].MayHairpin() {
			s.put(id{anElement, t, t.hairpins, hairpinKey(s.sp.Key.Protocol, s.list[i].Addr)}, value{})
		}
	}
}

// putEndpoints puts what each frontend that leads to the list has for it: if it
// does so in the other form too, what differs, else everything.
func (s *side) putEndpoints(t *table, l *listChange) {
	for i := range s.fronts {
		f := &s.fronts[i]
		if !f.leads[l.scope] {
			continue
		}
		if g := s.other.find(f); g != nil && g.leads[l.scope] {
			for _, slot := range l.slots {
				if slot < len(s.list) {
					s.putSlot(t, f, l.scope, slot)
				}
			}
			continue
		}
		for slot := range s.list {
			s.putSlot(t, f, l.scope, slot)
		}
	}
}

// putSlot puts the endpoint in a slot; with session affinity, its id in the slot
// and the endpoint under its id.
func (s *side) putSlot(t *table, f *front, scope proxy.Scope, slot int) {
	a := s.list[slot].Addr
	put := func(set *nft.Set, n uint32, data string) {
		s.put(id{anElement, t, set, f.key + string(hostWord(n))}, value{data: data})
	}
	at := firstSlot(scope) + uint32(slot)
	if s.block == nil {
		put(f.maps.endpoints, at, endpointData(a))
		return
	}
	id := s.block.id(scope, a)
	put(f.maps.ids, at, string(hostWord(id)))
	put(f.maps.endpoints, id, endpointData(a))
}

// gone returns the addresses that leave the list.
func (l *listChange) gone() map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for n, s := range l.sides {
		for _, i := range l.slots {
			if i < len(s.list) && n == 0 {
				out[s.list[i].Addr] = true
			} else if i < len(s.list) {
				delete(out, s.list[i].Addr)
			}
		}
	}
	return out
}

func endpointData(a netip.AddrPort) string {
	return string(appendPort(append(make([]byte, 0, 20), a.Addr().AsSlice()...), a.Port()))
}

func hairpinKey(p proxy.Protocol, a netip.AddrPort) string {
	addr := a.Addr().AsSlice()
	b := append(append(make([]byte, 0, 40), addr...), addr...)
	b = append(b, byte(p), 0, 0, 0)
	return string(appendPort(b, a.Port()))
}
