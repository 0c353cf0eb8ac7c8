package nftables

import (
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

var scopes = [2]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}

// output takes the elements that a row's change adds and removes.
type output interface {
	add(s *nft.Set, e nft.Element)
	remove(s *nft.Set, e nft.Element)
	use(c class, by int)                                // an element that leads to a class is added or removed
	drop(b *block, scope proxy.Scope, a netip.AddrPort) // an endpoint's id is not used any more
	release(k blockKey)                                 // nor a whole block
}

// form is how a row is written, but for its endpoints.
type form struct {
	sp     *proxy.ServicePort
	block  *block // of a row with session affinity
	fronts []front
	index  map[frontID]*front // of many frontends; nil before the first search
}

// frontID tells frontends apart.
type frontID struct {
	maps *frontendMaps
	key  string
}

// front is one frontend of a row.
type front struct {
	frontID
	leads [2]bool // which of the row's lists it leads to
	items []item  // all elements but those of endpoints
	uses  []class // the classes that items lead to
}

// item is an element of a set.
type item struct {
	set *nft.Set
	nft.Element
}

// form returns the form of a row; that of no row is empty.
func (t *table) form(sp *proxy.ServicePort) (form, error) {
	if sp == nil {
		return form{}, nil
	}
	b, err := t.blocks.of(sp)
	if err != nil {
		return form{}, err
	}
	out := form{sp: sp, block: b, fronts: make([]front, 0, len(sp.Frontends))}
	for _, f := range sp.Frontends {
		out.fronts = append(out.fronts, t.front(sp, f, b))
	}
	return out, nil
}

// front says where a frontend's packets go, and what happens to those that go
// nowhere. Whether a ClusterIP's clients are masqueraded is a constant rule's
// business.
func (t *table) front(sp *proxy.ServicePort, f proxy.Frontend, b *block) front {
	m := t.frontends(f.Kind == proxy.NodePort)
	out := front{frontID: frontID{m, m.key(sp.Key.Protocol, f.Addr)}}
	anyNode := &proxy.Node{}
	near := sp.Policy(f.Kind, anyNode)[proxy.ThisNode]
	far := sp.Policy(f.Kind, anyNode)[proxy.Elsewhere]

	switch {
	case len(near.To) > 0:
		split := f.Kind != proxy.ClusterIP && near.Scope != far.Scope
		out.leads[near.Scope] = true
		t.leadTo(&out, m.dispatch, classOf(sp, f.Kind, near, !split && f.Kind != proxy.ClusterIP))
		if split {
			out.item(m.external, "")
		}
		if split && len(far.To) > 0 {
			out.leads[far.Scope] = true
			t.leadTo(&out, m.locals, classOf(sp, f.Kind, far, false))
		}
		if b != nil {
			out.item(m.lists, string(hostWord(b.base)))
		}
	case m.byAddress && f.Kind != proxy.ClusterIP:
		// The address may be the node's own, and its port another Service's
		// NodePort: it must not go there.
		t.leadTo(&out, m.dispatch, class{})
	}
	if len(far.To) == 0 {
		set := m.rejects
		if far.Otherwise == proxy.Drop {
			set = m.drops
		}
		out.item(set, "")
	}
	t.addressOf(&out, sp, f)
	return out
}

// addressOf adds what is known by a frontend's address.
func (t *table) addressOf(out *front, sp *proxy.ServicePort, f proxy.Frontend) {
	switch {
	case f.Kind == proxy.ClusterIP:
		out.items = append(out.items, item{t.clusterIPs, nft.Element{Key: string(f.Addr.Addr().AsSlice())}})
	case f.Kind == proxy.LoadBalancer && sp.AllowFrom != nil:
		out.item(t.restricted, "")
		for _, p := range sp.AllowFrom {
			out.items = append(out.items, item{t.allowed, nft.Element{
				Key:    out.key + string(p.Masked().Addr().AsSlice()),
				KeyEnd: out.key + string(lastAddr(p).AsSlice()),
			}})
		}
	}
}

func (f *front) item(s *nft.Set, data string) {
	f.items = append(f.items, item{s, nft.Element{Key: f.key, Data: data}})
}

// leadTo leads a frontend to a class.
func (t *table) leadTo(f *front, s *nft.Set, c class) {
	f.item(s, string(hostWord(t.classes.number(c))))
	f.uses = append(f.uses, c)
}

// classOf returns the class of a route.
func classOf(sp *proxy.ServicePort, k proxy.Kind, r proxy.Route, masquerade bool) class {
	c := class{nodePort: k == proxy.NodePort, scope: r.Scope, count: len(r.To), masquerade: masquerade}
	if sp.Affinity > 0 {
		c.timeout, c.large = sp.Affinity, keyOfBlock(sp).large
	}
	return c
}

// change gives what makes a row new out of a row old; either may be nil. Its
// cost is that of the difference, but for a comparison of the lists of endpoints.
func (t *table) change(old, cur *proxy.ServicePort, out output) error {
	was, err := t.form(old)
	if err != nil {
		return err
	}
	is, err := t.form(cur)
	if err != nil {
		return err
	}
	changeItems(&was, &is, out)
	if was.block == is.block {
		t.changeEndpoints(&was, &is, out)
		return nil
	}
	t.changeEndpoints(&was, &form{}, out)
	t.changeEndpoints(&form{}, &is, out)
	if was.block != nil {
		out.release(keyOfBlock(old))
	}
	return nil
}

// changeItems gives the difference of all elements but those of endpoints.
func changeItems(was, is *form, out output) {
	had := map[itemID]nft.Element{}
	for i := range was.fronts {
		if j := is.find(&was.fronts[i]); j == nil || !j.same(&was.fronts[i]) {
			for _, x := range was.fronts[i].items {
				had[x.id()] = x.Element
			}
			for _, c := range was.fronts[i].uses {
				out.use(c, -1)
			}
		}
	}
	for i := range is.fronts {
		j := was.find(&is.fronts[i])
		if j != nil && j.same(&is.fronts[i]) {
			continue
		}
		for _, c := range is.fronts[i].uses {
			out.use(c, +1)
		}
		for _, x := range is.fronts[i].items {
			switch old, ok := had[x.id()]; {
			case !ok:
				out.add(x.set, x.Element)
			case old != x.Element:
				out.remove(x.set, old)
				out.add(x.set, x.Element)
			}
			delete(had, x.id())
		}
	}
	for i := range was.fronts {
		for _, x := range was.fronts[i].items {
			if e, ok := had[x.id()]; ok {
				out.remove(x.set, e)
				delete(had, x.id())
			}
		}
	}
}

// itemID tells elements apart.
type itemID struct {
	set *nft.Set
	key string // with its end, for ranges
}

func (x item) id() itemID { return itemID{x.set, x.Key + x.KeyEnd} }

func (f *front) same(g *front) bool { return slices.Equal(f.items, g.items) }

// find returns the frontend of a form that is in the same maps with the same
// key, or nil. A row may have thousands, so they are searched by an index.
func (f *form) find(g *front) *front {
	if len(f.fronts) <= fewFronts {
		for i := range f.fronts {
			if f.fronts[i].frontID == g.frontID {
				return &f.fronts[i]
			}
		}
		return nil
	}
	if f.index == nil {
		f.index = make(map[frontID]*front, len(f.fronts))
		for i := range f.fronts {
			f.index[f.fronts[i].frontID] = &f.fronts[i]
		}
	}
	return f.index[g.frontID]
}

// fewFronts are found faster one by one.
const fewFronts = 8

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
