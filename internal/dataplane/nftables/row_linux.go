package nftables

import (
	"fmt"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

var scopes = [2]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}

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
	leads   [2]bool  // which of the row's lists it leads to
	objects []object // all but those of endpoints
}

// object is one with its value.
type object struct {
	id
	value
}

// maxElements bounds what one service port takes: each of its addresses has each of
// its endpoints. A tenant who may write a few thousand of both would take all memory of
// all nodes.
const maxElements = 1 << 18

// form returns the form of a row; that of no row is empty.
func (t *table) form(r differ.Row) (form, error) {
	sp := r.ServicePort
	if sp == nil {
		return form{}, nil
	}
	var b *block
	if t.translates(sp, r.Node) {
		if n := max(len(sp.Cluster), len(sp.Local)); n*len(sp.Frontends) > maxElements {
			return form{}, fmt.Errorf("%d addresses with %d endpoints each are more than the %d elements that a service port may have",
				len(sp.Frontends), n, maxElements)
		}
		var err error
		if b, err = t.blocks.of(sp); err != nil {
			return form{}, err
		}
	}
	out := form{sp: sp, block: b, fronts: make([]front, 0, len(sp.Frontends))}
	for _, f := range sp.Frontends {
		out.fronts = append(out.fronts, t.front(sp, f, sp.Policy(f.Kind, r.Node), b))
	}
	return out, nil
}

// front says where a frontend's packets go, and what happens to those that go
// nowhere. Constant rules tell origins apart: whose clients are masqueraded of
// those that come to a ClusterIP, and who takes which list of a split frontend.
func (t *table) front(sp *proxy.ServicePort, f proxy.Frontend, p proxy.Policy, b *block) front {
	m := t.frontends(f.Kind == proxy.NodePort)
	out := front{frontID: frontID{m, m.key(sp.Key.Protocol, f.Addr)}}
	near, far := p[proxy.ThisNode], p[proxy.Elsewhere]

	switch {
	case len(near.To) > 0 && near.Scope == far.Scope:
		if f.Kind == proxy.ClusterIP {
			t.lead(&out, m.dispatch, t.classOf(sp, f, near, false), toClusterIP)
		} else {
			t.lead(&out, m.dispatch, t.classOf(sp, f, near, near.Masquerade), 0)
		}
	case len(near.To) > 0:
		out.element(t, m.dispatch, string(hostWord(split)))
		t.lead(&out, m.external, t.classOf(sp, f, near, false), 0)
		if len(far.To) > 0 {
			t.lead(&out, m.locals, t.classOf(sp, f, far, far.Masquerade), 0)
		}
	case m.byAddress && f.Kind != proxy.ClusterIP:
		// The address may be the node's own, and its port another Service's
		// NodePort: it must not go there.
		t.lead(&out, m.dispatch, class{}, 0)
	}
	if b != nil && out.leads != [2]bool{} {
		out.element(t, m.lists, string(hostWord(b.base)))
	}
	if len(far.To) == 0 {
		end := uint32(rejected)
		if far.Otherwise == proxy.Drop {
			end = dropped
		}
		out.element(t, m.empty, string(hostWord(end)))
	}
	t.addressOf(&out, sp, f, far)
	return out
}

// addressOf adds what is known by a frontend's address.
func (t *table) addressOf(out *front, sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) {
	if f.Kind == proxy.ClusterIP {
		out.objects = append(out.objects, object{id: id{anElement, t, t.clusterIPs, string(f.Addr.Addr().AsSlice())}})
	}
	if t.over.OnLink && f.Kind != proxy.NodePort && t.taken(sp, f, r) {
		out.objects = append(out.objects, object{id: id{anElement, t, t.onLink, string(f.Addr.Addr().AsSlice())}})
	}
	if r.From == nil {
		return
	}
	c := t.clientsChain(r.From)
	out.element(t, t.restricted, c.Name)
	out.objects = append(out.objects, object{id{kind: aChain, t: t, key: c.Name}, value{chain: c}})
}

func (f *front) element(t *table, s *nft.Set, data string) {
	f.objects = append(f.objects, object{id{anElement, t, s, f.key}, value{data: data}})
}

// lead leads a frontend to a class, which it needs with its chains. Bits of the
// number may say more than that.
func (t *table) lead(f *front, s *nft.Set, c class, bits uint32) {
	f.leads[c.scope] = f.leads[c.scope] || c.count > 0
	f.element(t, s, string(hostWord(t.classes.number(c)|bits)))
	f.objects = append(f.objects, t.classObjects(c)...)
}

func (t *table) classOf(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route, masquerade bool) class {
	c := class{nodePort: f.Kind == proxy.NodePort, scope: r.Scope, masquerade: masquerade}
	if c.taken = t.taken(sp, f, r); !c.taken {
		c.count, c.timeout, c.way = len(r.To), sp.Affinity, wayOf(sp, len(r.To))
	}
	return c
}

// change gives what makes one form of a row the other. Its cost is that of the
// difference, but for a comparison of the lists of endpoints. The ids of a row
// that stays as it was are given back, unless a Sync tries again.
func (t *table) change(old, cur differ.Row, out *changes, syncing bool) error {
	if cur.ServicePort != nil && cur.Affinity > 0 && !syncing {
		out.Then(func(written bool) {
			if !written {
				t.blocks.trim(cur.Key, old.ServicePort)
			}
		})
	}
	was, err := t.form(old)
	if err != nil {
		return err
	}
	is, err := t.form(cur)
	if err != nil {
		return err
	}
	was.putFronts(&is, out.Remove)
	is.putFronts(&was, out.Add)
	if was.block == is.block {
		t.changeEndpoints(&was, &is, out)
		return nil
	}
	t.changeEndpoints(&was, &form{}, out)
	t.changeEndpoints(&form{}, &is, out)
	if was.block != nil {
		out.Then(func(written bool) {
			if written {
				t.blocks.remove(old.Key)
			}
		})
	}
	return nil
}

// putFronts puts all objects but those of endpoints, of frontends that another form
// has not, or otherwise.
func (f *form) putFronts(other *form, put func(id, value)) {
	for i := range f.fronts {
		own := &f.fronts[i]
		if g := other.find(own); g == nil || !slices.EqualFunc(g.objects, own.objects, sameObject) {
			for _, x := range own.objects {
				put(x.id, x.value)
			}
		}
	}
}

// sameObject compares objects of rows, where a chain's name says what it is like.
func sameObject(a, b object) bool { return a.id == b.id && a.data == b.data }

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
