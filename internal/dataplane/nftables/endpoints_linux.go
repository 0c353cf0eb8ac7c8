package nftables

import (
	"net/netip"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// listChange is the change of one of a row's lists of endpoints.
type listChange struct {
	scope proxy.Scope
	slots []int   // the slots in which the two versions differ
	sides [2]side // before and after
}

// side is one version of a row and of one of its lists. Objects of the old version are put
// with Remove, those of the new one with Add.
type side struct {
	*renderedRow
	list  []proxy.Endpoint
	other *renderedRow
	put   func(id, value)
}

// changeEndpoints renders the difference between the endpoints of two versions of a row,
// either of which may be empty. If both have a block of ids, it is the same one. If an
// endpoint only changes its slot, its element is removed and added with the same value, which
// cancels out.
func (t *table) changeEndpoints(was, is *renderedRow, out *changes) {
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
			gone := l.removedAddresses()
			out.Then(func(written bool) {
				for a := range gone {
					if written {
						b.release(scope, a)
					}
				}
			})
		}
	}
}

func (f *renderedRow) list(scope proxy.Scope) []proxy.Endpoint {
	if f.sp == nil {
		return nil
	}
	return f.sp.List(scope)
}

// putHairpins puts elements for the pods in the slots that may be sent to themselves.
func (s *side) putHairpins(t *table, slots []int) {
	if t.overlay.Sockets != nil {
		return // the program that owns the sockets handles hairpins
	}
	for _, i := range slots {
		if i < len(s.list) && s.list[i].MayHairpin() {
			s.put(id{kindElement, t, t.hairpins, hairpinKey(s.sp.Key.Protocol, s.list[i].Addr)}, value{})
		}
	}
}

// putEndpoints puts the elements of the list for each frontend that uses it: those of
// the slots that differ if the frontend uses the list in the other version too, else all.
func (s *side) putEndpoints(t *table, l *listChange) {
	for i := range s.frontends {
		f := &s.frontends[i]
		if !f.usesList[l.scope] {
			continue
		}
		if g := s.other.find(f); g != nil && g.usesList[l.scope] {
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

// putSlot puts the element for the endpoint in a slot or, with session affinity, one for
// its id in the slot and one for the endpoint under its id.
func (s *side) putSlot(t *table, f *renderedFrontend, scope proxy.Scope, slot int) {
	a := s.list[slot].Addr
	put := func(set *nft.Set, n uint32, data string) {
		s.put(id{kindElement, t, set, f.key + string(hostWord(n))}, value{data: data})
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

// removedAddresses returns the addresses that the list no longer has.
func (l *listChange) removedAddresses() map[netip.AddrPort]bool {
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

// endpointData returns an endpoint as the maps of endpoints hold it.
func endpointData(a netip.AddrPort) string {
	return string(appendPort(append(make([]byte, 0, 20), a.Addr().AsSlice()...), a.Port()))
}

func hairpinKey(p proxy.Protocol, a netip.AddrPort) string {
	addr := a.Addr().AsSlice()
	b := append(append(make([]byte, 0, 40), addr...), addr...)
	b = append(b, byte(p), 0, 0, 0)
	return string(appendPort(b, a.Port()))
}
