package nftables

import (
	"fmt"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

var scopes = [2]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}

// renderedRow is what a row renders to, without the elements of its endpoints. The zero
// value is that of no row.
type renderedRow struct {
	sp        *proxy.ServicePort
	block     *block // nil without session affinity
	frontends []renderedFrontend
	index     map[frontendKey]*renderedFrontend // used by find; nil before the first search
}

// frontendKey identifies a frontend.
type frontendKey struct {
	maps *frontendMaps
	key  string
}

// renderedFrontend is what one frontend of a row renders to.
type renderedFrontend struct {
	frontendKey
	usesList [2]bool  // by scope, whether rules choose from that list of the row
	objects  []object // all objects except elements of endpoints
}

// object is an object's ID and its value.
type object struct {
	id
	value
}

// maxElements bounds the elements of one service port, which has one for each pair of
// frontend and endpoint. Otherwise a tenant who may write a few thousand of both could
// use up the memory of every node.
const maxElements = 1 << 18

// CheckSize returns an error if a row has more than maxElements.
func CheckSize(sp *proxy.ServicePort) error {
	if n := max(len(sp.Cluster), len(sp.Local)); n*len(sp.Frontends) > maxElements {
		return fmt.Errorf("%d addresses with %d endpoints each are more than the %d elements that a service port may have", len(sp.Frontends), n, maxElements)
	}
	return nil
}

// renderRow renders a row. An error refuses the row.
func (t *table) renderRow(r differ.Row) (renderedRow, error) {
	sp := r.ServicePort
	if sp == nil {
		return renderedRow{}, nil
	}
	var b *block
	if t.translates(sp, r.Node) {
		err := CheckSize(sp)
		if err == nil {
			b, err = t.blocks.ensure(sp)
		}
		if err != nil {
			return renderedRow{}, err
		}
	}
	out := renderedRow{sp: sp, block: b, frontends: make([]renderedFrontend, 0, len(sp.Frontends))}
	for _, f := range sp.Frontends {
		out.frontends = append(out.frontends, t.renderFrontend(sp, f, sp.Policy(f.Kind, r.Node), b))
	}
	return out, nil
}

// renderFrontend renders where a frontend's packets are sent, and what happens to packets
// without an endpoint. Constant rules distinguish origins: which clients of a ClusterIP
// are masqueraded, and which clients use which list of a frontend split by origin.
func (t *table) renderFrontend(sp *proxy.ServicePort, f proxy.Frontend, p proxy.Policy, b *block) renderedFrontend {
	m := t.mapsFor(f.Kind == proxy.NodePort)
	out := renderedFrontend{frontendKey: frontendKey{m, m.key(sp.Key.Protocol, f.Addr)}}
	near, far := p[proxy.ThisNode], p[proxy.Elsewhere]

	switch {
	case len(near.To) > 0 && near.Scope == far.Scope:
		if f.Kind == proxy.ClusterIP {
			t.addClass(&out, m.dispatch, t.classOf(sp, f, near, false), clusterIPFlag)
		} else {
			t.addClass(&out, m.dispatch, t.classOf(sp, f, near, near.Masquerade), 0)
		}
	case len(near.To) > 0:
		out.element(t, m.dispatch, string(hostWord(split)))
		t.addClass(&out, m.external, t.classOf(sp, f, near, false), 0)
		if len(far.To) > 0 {
			t.addClass(&out, m.locals, t.classOf(sp, f, far, far.Masquerade), 0)
		}
	case m.byAddress && f.Kind != proxy.ClusterIP:
		// The address may be one of the node's own and its port the NodePort of another
		// Service: an accepting class keeps the packet from going there.
		t.addClass(&out, m.dispatch, class{}, 0)
	}
	if b != nil && out.usesList != [2]bool{} {
		out.element(t, m.lists, string(hostWord(b.base)))
	}
	if len(far.To) == 0 {
		end := uint32(rejected)
		if far.Otherwise == proxy.Drop {
			end = dropped
		}
		out.element(t, m.noEndpoints, string(hostWord(end)))
	}
	t.addAddressObjects(&out, sp, f, far)
	return out
}

// addAddressObjects adds the objects that are looked up by a frontend's address: its
// membership in sets of addresses, and its source ranges.
func (t *table) addAddressObjects(out *renderedFrontend, sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) {
	if f.Kind == proxy.ClusterIP {
		out.objects = append(out.objects, object{id: id{kindElement, t, t.clusterIPs, string(f.Addr.Addr().AsSlice())}})
	}
	if t.overlay.OnLink && f.Kind != proxy.NodePort && t.taken(sp, f, r) {
		out.objects = append(out.objects, object{id: id{kindElement, t, t.onLink, string(f.Addr.Addr().AsSlice())}})
	}
	if r.From == nil {
		return
	}
	c := t.clientsChain(r.From)
	out.element(t, t.restricted, c.Name)
	out.objects = append(out.objects, object{id{kind: kindChain, t: t, key: c.Name}, value{chain: c}})
}

func (f *renderedFrontend) element(t *table, s *nft.Set, data string) {
	f.objects = append(f.objects, object{id{kindElement, t, s, f.key}, value{data: data}})
}

// addClass adds the element of s that sends the frontend's packets to a class, and the
// objects of the class. The bits are set in the number that the element holds.
func (t *table) addClass(f *renderedFrontend, s *nft.Set, c class, bits uint32) {
	f.usesList[c.scope] = f.usesList[c.scope] || c.count > 0
	f.element(t, s, string(hostWord(t.classes.number(c)|bits)))
	f.objects = append(f.objects, t.classObjects(c)...)
}

func (t *table) classOf(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route, masquerade bool) class {
	c := class{nodePort: f.Kind == proxy.NodePort, scope: r.Scope, masquerade: masquerade}
	if c.taken = t.taken(sp, f, r); !c.taken {
		c.count, c.timeout, c.method = len(r.To), sp.Affinity, methodOf(sp, len(r.To))
	}
	return c
}

// diffRow renders the difference between two versions of a row. Apart from comparing the
// lists of endpoints, its cost depends on the difference only. If an Apply does not
// write the current version, the ids that only it has are released; a Sync keeps them, because
// it tries again.
func (t *table) diffRow(old, cur differ.Row, out *changes, syncing bool) error {
	if cur.ServicePort != nil && cur.Affinity > 0 && !syncing {
		out.Then(func(written bool) {
			if !written {
				t.blocks.trim(cur.Key, old.ServicePort)
			}
		})
	}
	was, err := t.renderRow(old)
	if err != nil {
		return err
	}
	is, err := t.renderRow(cur)
	if err != nil {
		return err
	}
	was.putFrontends(&is, out.Remove)
	is.putFrontends(&was, out.Add)
	if was.block == is.block {
		t.changeEndpoints(&was, &is, out)
		return nil
	}
	t.changeEndpoints(&was, &renderedRow{}, out)
	t.changeEndpoints(&renderedRow{}, &is, out)
	if was.block != nil {
		out.Then(func(written bool) {
			if written {
				t.blocks.remove(old.Key)
			}
		})
	}
	return nil
}

// putFrontends calls put for the objects, except elements of endpoints, of the frontends
// that the other version lacks or renders differently.
func (f *renderedRow) putFrontends(other *renderedRow, put func(id, value)) {
	for i := range f.frontends {
		own := &f.frontends[i]
		if g := other.find(own); g == nil || !slices.EqualFunc(g.objects, own.objects, sameObject) {
			for _, x := range own.objects {
				put(x.id, x.value)
			}
		}
	}
}

// sameObject compares objects of rows. It does not compare rules, because the name of a
// chain that belongs to rows determines its rules.
func sameObject(a, b object) bool { return a.id == b.id && a.data == b.data }

// find returns f's frontend with the key of g, or nil. A row may have thousands of
// frontends, so there is an index.
func (f *renderedRow) find(g *renderedFrontend) *renderedFrontend {
	if len(f.frontends) <= fewFrontends {
		for i := range f.frontends {
			if f.frontends[i].frontendKey == g.frontendKey {
				return &f.frontends[i]
			}
		}
		return nil
	}
	if f.index == nil {
		f.index = make(map[frontendKey]*renderedFrontend, len(f.frontends))
		for i := range f.frontends {
			f.index[f.frontends[i].frontendKey] = &f.frontends[i]
		}
	}
	return f.index[g.frontendKey]
}

// fewFrontends is the number up to which a linear search is faster than an index.
const fewFrontends = 8
