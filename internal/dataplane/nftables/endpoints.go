package nftables

import (
	"net/netip"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// listChange is how one of a row's lists of endpoints changes.
type listChange struct {
	scope    proxy.Scope
	old, cur []proxy.Endpoint
	slots    []int // those in which the two differ
}

// changeEndpoints gives the difference between the endpoints of two forms of a
// row. They have the same block of ids, or none; either may be empty.
func (t *table) changeEndpoints(was, is *form, out *changes) {
	for _, scope := range scopes {
		l := compareLists(was.list(scope), is.list(scope))
		l.scope = scope
		t.changeHairpins(&l, was, is, out)
		switch {
		case was.block != nil:
			l.changeIDs(t, was.block, was, is, out)
		case is.block != nil:
			l.changeIDs(t, is.block, was, is, out)
		default:
			l.changeSlots(t, was, is, out, func(f *front, e *proxy.Endpoint) (*nft.Set, string) {
				return f.maps.endpoints, endpointData(e.Addr)
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

func compareLists(old, cur []proxy.Endpoint) listChange {
	l := listChange{old: old, cur: cur}
	for i := range max(len(old), len(cur)) {
		if i >= len(old) || i >= len(cur) || old[i] != cur[i] {
			l.slots = append(l.slots, i)
		}
	}
	return l
}

// moved calls f for every slot whose address changes, with the old and the new
// one, as far as there are.
func (l *listChange) moved(f func(slot int, old, cur *proxy.Endpoint)) {
	for _, i := range l.slots {
		var old, cur *proxy.Endpoint
		if i < len(l.old) {
			old = &l.old[i]
		}
		if i < len(l.cur) {
			cur = &l.cur[i]
		}
		if old == nil || cur == nil || old.Addr != cur.Addr {
			f(i, old, cur)
		}
	}
}

func (t *table) changeHairpins(l *listChange, was, is *form, out *changes) {
	for _, i := range l.slots {
		if i < len(l.old) && l.old[i].MayHairpin() {
			out.Remove(id{anElement, t, t.hairpins, hairpinKey(was.sp.Key.Protocol, l.old[i].Addr)}, value{})
		}
		if i < len(l.cur) && l.cur[i].MayHairpin() {
			out.Add(id{anElement, t, t.hairpins, hairpinKey(is.sp.Key.Protocol, l.cur[i].Addr)}, value{})
		}
	}
}

// pairs calls one of the functions for each frontend: for one that leads to the
// list in only one of the forms, or in both.
func (l *listChange) pairs(was, is *form, goes, comes, stays func(*front)) {
	for i := range was.fronts {
		f := &was.fronts[i]
		if g := is.find(f); f.leads[l.scope] && (g == nil || !g.leads[l.scope]) {
			goes(f)
		}
	}
	for i := range is.fronts {
		f := &is.fronts[i]
		if !f.leads[l.scope] {
			continue
		}
		if g := was.find(f); g != nil && g.leads[l.scope] {
			stays(f)
		} else {
			comes(f)
		}
	}
}

// changeSlots gives what each slot of the list has under each frontend.
func (l *listChange) changeSlots(t *table, was, is *form, out *changes, of func(*front, *proxy.Endpoint) (*nft.Set, string)) {
	put := func(to func(id, value), f *front, i int, e *proxy.Endpoint) {
		set, data := of(f, e)
		to(id{anElement, t, set, f.slot(l.scope, i)}, value{data: data})
	}
	remove := func(f *front, i int, e *proxy.Endpoint) { put(out.Remove, f, i, e) }
	add := func(f *front, i int, e *proxy.Endpoint) { put(out.Add, f, i, e) }
	l.pairs(was, is, func(f *front) {
		for i := range l.old {
			remove(f, i, &l.old[i])
		}
	}, func(f *front) {
		for i := range l.cur {
			add(f, i, &l.cur[i])
		}
	}, func(f *front) {
		l.moved(func(i int, old, cur *proxy.Endpoint) {
			if old != nil {
				remove(f, i, old)
			}
			if cur != nil {
				add(f, i, cur)
			}
		})
	})
}

// slot returns the key of a slot under a frontend.
func (f *front) slot(scope proxy.Scope, i int) string {
	return f.key + string(hostWord(firstSlot(scope)+uint32(i)))
}

// changeIDs gives the endpoints of a list with session affinity: by id under
// each frontend, and the id in each slot.
func (l *listChange) changeIDs(t *table, b *block, was, is *form, out *changes) {
	goes, comes := l.addresses()
	put := func(to func(id, value), f *front, a netip.AddrPort) {
		to(id{anElement, t, f.maps.endpoints, f.key + string(hostWord(b.id(l.scope, a)))}, value{data: endpointData(a)})
	}
	l.pairs(was, is, func(f *front) {
		for _, e := range l.old {
			put(out.Remove, f, e.Addr)
		}
	}, func(f *front) {
		for _, e := range l.cur {
			put(out.Add, f, e.Addr)
		}
	}, func(f *front) {
		for a := range goes {
			put(out.Remove, f, a)
		}
		for a := range comes {
			put(out.Add, f, a)
		}
	})
	l.changeSlots(t, was, is, out, func(f *front, e *proxy.Endpoint) (*nft.Set, string) {
		return f.maps.ids, string(hostWord(b.id(l.scope, e.Addr)))
	})
	out.Then(func(written bool) {
		for a := range goes {
			if written {
				b.drop(l.scope, a)
			}
		}
	})
}

// addresses returns the addresses that leave the list and those that join it.
func (l *listChange) addresses() (goes, comes map[netip.AddrPort]bool) {
	goes, comes = map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	l.moved(func(_ int, old, _ *proxy.Endpoint) {
		if old != nil {
			goes[old.Addr] = true
		}
	})
	l.moved(func(_ int, _, cur *proxy.Endpoint) {
		switch {
		case cur == nil:
		case goes[cur.Addr]:
			delete(goes, cur.Addr)
		default:
			comes[cur.Addr] = true
		}
	})
	return goes, comes
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
