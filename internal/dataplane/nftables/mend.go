package nftables

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// mend writes what is missing or wrong in a table that is there. It may be
// live, so the order matters: endpoints are added before anything leads to
// them, and removed after nothing does. It may end after any batch.
func (w *writer) mend(s *proxy.State, rows []*proxy.ServicePort, l *nft.Listing) {
	if w.recover(rows, l); w.err != nil {
		return
	}
	w.t.blocks.keep(rows)
	want := newWanted(w)
	for _, sp := range rows {
		want.key, want.owner = sp.Key, sp.Key
		w.row(sp, want)
	}
	inner, base := w.t.constant(s.Node, s.CIDRs, w.guard)
	chains := byName(inner)
	for c := range w.t.classes.uses {
		want.class(c, chains)
	}
	w.mendSets(l)
	w.mendChains(&w.b, chains, want.classOf, l)
	w.mendElements(want, l)
	hooks := byName(base)
	w.mendChains(&w.live, hooks, nil, l)
	for name := range l.Chains {
		if chains[name] == nil && hooks[name] == nil {
			w.gone = append(w.gone, name)
		}
	}
}

func byName(chains []*chain) map[string]*chain {
	out := map[string]*chain{}
	for _, c := range chains {
		out[c.Name] = c
	}
	return out
}

func (w *writer) mendSets(l *nft.Listing) {
	for _, s := range w.t.sets() {
		if _, ok := l.Sets[s.Name]; !ok {
			w.b.AddSet(s)
		}
	}
}

// mendChains adds chains that are missing and rewrites those whose rules differ.
// Chains of classes belong to the rows that need them. The batch that makes the
// rules live stays whole.
func (w *writer) mendChains(b *nft.Batch, want map[string]*chain, classOf map[string]classOwner, l *nft.Listing) {
	own := func(name string) {
		if b.Owner = nil; classOf[name] != (classOwner{}) {
			b.Owner = classOf[name]
		}
	}
	names := slices.Sorted(maps.Keys(want))
	for _, name := range names {
		if _, ok := l.Chains[name]; !ok {
			own(name)
			b.AddChain(w.t.Table, &want[name].Chain)
		}
	}
	for _, name := range names {
		if rules, ok := l.Chains[name]; ok && slices.Equal(rules, w.t.listed(want[name])) {
			continue
		}
		own(name)
		rewrite(b, w.t, want[name])
		if b == &w.b {
			w.flushIfLarge()
		}
	}
	b.Owner = nil
}

// listed returns a chain's rules as a listing has them.
func (t *table) listed(c *chain) []nft.ListedRule {
	var rules []nft.ListedRule
	for _, r := range c.rules {
		rules = append(rules, r.Listed(t.Table.Family))
	}
	return rules
}

// mendElements writes the difference between the elements that are there and
// those wanted: first what is new or different, then what is surplus.
func (w *writer) mendElements(want *wanted, l *nft.Listing) {
	for _, s := range w.t.sets() {
		if s.Dynamic || w.err != nil {
			continue
		}
		if _, ok := l.Sets[s.Name]; ok {
			w.err = w.conn.Elements(w.ctx, s, func(e nft.Element) { want.compare(s, e) })
		}
		switch s {
		case w.t.allowed: // with the frontends that they are of
		case w.t.restricted:
			w.mendRanges(want, true)
		default:
			w.addMissing(s, want.elements[s])
		}
	}
	for _, s := range slices.Backward(w.t.sets()) {
		switch s {
		case w.t.allowed:
		case w.t.restricted:
			w.mendRanges(want, false)
		default:
			w.removeSurplus(s, want.surplus[s])
		}
	}
	w.b.Owner = nil
}

// addMissing writes elements that are not there yet, in the place of others
// that have their key.
func (w *writer) addMissing(s *nft.Set, elements map[string]*owned) {
	for _, o := range elements {
		if o.there {
			continue
		}
		w.b.Owner = o.owner
		if o.instead {
			w.b.DeleteElement(s, o.Element)
		}
		w.b.AddElement(s, o.Element)
		w.flushIfLarge()
	}
}

func (w *writer) removeSurplus(s *nft.Set, elements map[string]nft.Element) {
	w.b.Owner = nil
	for _, e := range elements {
		w.b.DeleteElement(s, e)
		w.flushIfLarge()
	}
}

// rangeOp writes or removes one element of a frontend's source ranges.
type rangeOp struct {
	frontend string
	set      *nft.Set
	remove   bool
	owned
}

// mendRanges writes the source ranges of all frontends that are to have some, or
// removes those of the others. A frontend's ranges change in one batch: it is
// neither open nor closed to everyone in between.
func (w *writer) mendRanges(want *wanted, restricted bool) {
	var ops []rangeOp
	note := func(op rangeOp) {
		op.frontend = op.Key[:w.t.restricted.KeyLen()]
		if _, ok := want.elements[w.t.restricted][op.frontend]; ok == restricted {
			ops = append(ops, op)
		}
	}
	for _, s := range []*nft.Set{w.t.restricted, w.t.allowed} {
		for _, e := range want.surplus[s] {
			note(rangeOp{set: s, remove: true, owned: owned{Element: e}})
		}
	}
	for _, s := range []*nft.Set{w.t.allowed, w.t.restricted} {
		for _, o := range want.elements[s] {
			if !o.there {
				note(rangeOp{set: s, owned: *o})
			}
		}
	}
	// What goes stays before what comes, since ranges must not overlap.
	slices.SortStableFunc(ops, func(a, b rangeOp) int { return cmp.Compare(a.frontend, b.frontend) })
	for i, op := range ops {
		if i > 0 && ops[i-1].frontend != op.frontend {
			w.flushIfLarge()
		}
		if w.b.Owner = op.owner; op.remove {
			w.b.DeleteElement(op.set, op.Element)
		} else {
			w.b.AddElement(op.set, op.Element)
		}
	}
	w.b.Owner = nil
}

// owned is an element with the row or class it belongs to.
type owned struct {
	nft.Element
	owner   any
	there   bool // the kernel has it
	instead bool // the kernel has another value
}

// wanted collects what all rows render to, and what the kernel has besides.
type wanted struct {
	w        *writer
	key      proxy.PortKey
	owner    any // the key, boxed once for all elements of a row
	elements map[*nft.Set]map[string]*owned
	surplus  map[*nft.Set]map[string]nft.Element
	classOf  map[string]classOwner // by chain
}

func newWanted(w *writer) *wanted {
	out := &wanted{
		w: w, elements: map[*nft.Set]map[string]*owned{}, surplus: map[*nft.Set]map[string]nft.Element{},
		classOf: map[string]classOwner{},
	}
	for _, s := range w.t.sets() {
		out.elements[s], out.surplus[s] = map[string]*owned{}, map[string]nft.Element{}
	}
	return out
}

func (w *wanted) add(s *nft.Set, e nft.Element) {
	x := item{s, e}
	if t := w.w.t; t.shared(s) {
		t.shares[x.id()]++
	}
	w.elements[s][x.id().key] = &owned{Element: e, owner: w.owner}
}

func (w *wanted) use(c class, by int) {
	w.w.needs(w.key, c)
	w.w.t.classes.use(c, by)
}

// class adds a class and its chains to what is wanted.
func (w *wanted) class(c class, chains map[string]*chain) {
	owner, e := classOwner{w.w.t, c}, w.w.t.classes.element(c)
	w.elements[w.w.t.classSet][e.Key] = &owned{Element: e, owner: owner}
	for _, out := range w.w.t.classChains(c) {
		chains[out.Name], w.classOf[out.Name] = out, owner
	}
}

// A row that is rendered whole removes nothing.
func (w *wanted) remove(*nft.Set, nft.Element)             {}
func (w *wanted) drop(*block, proxy.Scope, netip.AddrPort) {}
func (w *wanted) release(blockKey)                         {}

// compare notes what an element of the kernel means for those wanted. The same
// element may come twice.
func (w *wanted) compare(s *nft.Set, e nft.Element) {
	id := item{s, e}.id().key
	switch o := w.elements[s][id]; {
	case o == nil:
		w.surplus[s][id] = e
	case o.Element == e:
		o.there = true
	default:
		o.instead = true
	}
}
