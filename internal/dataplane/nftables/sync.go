package nftables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// batchBytes bounds the batches of a Sync. It fits the kernel's default socket
// buffer, for those who may not ask for a larger one.
const batchBytes = 256 << 10

// Sync makes the kernel right whatever was there before. A table that is not
// there is written row by row and made live by its last batch, in which
// kube-proxy's tables go. A table that is there is listed, and only what
// differs is written. What clients are remembered for stays.
func (d *Dataplane) Sync(ctx context.Context, s *proxy.State) error {
	refused := map[proxy.PortKey]error{}
	for {
		err := d.sync(ctx, s, refused)
		if err == nil {
			break
		}
		if !blame(err, refused) {
			return err
		}
	}
	if len(refused) > 0 {
		return &proxy.RefusedError{Rows: refused}
	}
	return nil
}

func (d *Dataplane) sync(ctx context.Context, s *proxy.State, refused map[proxy.PortKey]error) error {
	d.node = nil // until the end, Apply has nothing to stand on
	d.refs = map[elementID]int{}
	d.chains = map[*table]map[string]bool{}
	live := &nft.Batch{}
	var writers []*writer
	for _, t := range d.tables {
		listing, err := d.conn.List(ctx, t.Table)
		if err != nil {
			return err
		}
		if listing != nil && !t.fits(listing) {
			// What cannot be changed in place is made anew.
			var b nft.Batch
			b.DeleteTable(t.Table)
			if err := d.conn.Commit(ctx, &b); err != nil {
				return fmt.Errorf("delete a table that is not as ours: %w", err)
			}
			listing = nil
		}
		w := &writer{d: d, t: t, ctx: ctx}
		rows := rowsOf(s, t.family, refused)
		if listing == nil {
			w.fresh(s, rows)
		} else {
			w.mend(s, rows, listing)
		}
		w.flush()
		if w.err != nil {
			return w.err
		}
		d.chains[t] = w.chains
		live.Ops = append(live.Ops, w.live.Ops...)
		writers = append(writers, w)
	}
	if err := d.takeOver(ctx, live); err != nil {
		return err
	}
	if err := d.conn.Commit(ctx, live); err != nil {
		return fmt.Errorf("make the rules live: %w", err)
	}
	for _, w := range writers {
		if w.sweep(); w.err != nil {
			return w.err
		}
	}
	d.node, d.cidrs = s.Node, s.CIDRs
	return nil
}

// fits reports whether what is in a table can be mended: base chains hang where
// they should, sets hold what they should, and the table is awake.
func (t *table) fits(l *nft.Listing) bool {
	for _, c := range t.hooks() {
		if _, ok := l.Chains[c.Name]; ok && l.Hooks[c.Name] != c.Hook.String() {
			return false
		}
	}
	for _, s := range t.sets() {
		if _, ok := l.Sets[s.Name]; ok && l.Types[s.Name] != s.Shape() {
			return false
		}
	}
	return !l.Dormant
}

// takeOver adds the removal of kube-proxy's tables to the batch that makes ours live.
func (d *Dataplane) takeOver(ctx context.Context, live *nft.Batch) error {
	for _, t := range d.tables {
		theirs := nft.Table{Family: t.Table.Family, Name: "kube-proxy"}
		listing, err := d.conn.List(ctx, theirs)
		if err != nil {
			return err
		}
		if listing != nil {
			live.DeleteTable(theirs)
		}
	}
	return nil
}

func rowsOf(s *proxy.State, f proxy.Family, refused map[proxy.PortKey]error) []*proxy.ServicePort {
	rows := make([]*proxy.ServicePort, 0, len(s.Rows))
	for key, sp := range s.Rows {
		if key.Family == f && refused[key] == nil {
			rows = append(rows, sp)
		}
	}
	return rows
}

// writer writes one table in bounded batches and keeps the first error.
type writer struct {
	d      *Dataplane
	t      *table
	ctx    context.Context
	b      nft.Batch
	live   nft.Batch // what comes last: the base chains
	gone   []string  // chains to be deleted when all is live
	chains map[string]bool
	err    error
}

// flush commits what has been collected.
func (w *writer) flush() {
	if w.err != nil {
		return
	}
	if w.err = w.d.conn.Commit(w.ctx, &w.b); w.err != nil {
		w.b = nft.Batch{} // the error refers to the operations
		return
	}
	w.b.Reset()
}

// full commits when a batch is large enough, unless it is in the midst of
// ranges.
func (w *writer) full(s *nft.Set) {
	if w.b.Bytes() > batchBytes && !s.Interval {
		w.flush()
	}
}

// fresh writes a table that is not there. Since nothing leads to it before the
// last batch, rows are written as they come.
func (w *writer) fresh(s *proxy.State, rows []*proxy.ServicePort) {
	w.b.AddTable(w.t.Table)
	for _, set := range w.t.sets() {
		w.b.AddSet(set)
	}
	inner, base := w.t.constant(s.Node, s.CIDRs)
	addChains(&w.b, w.t, inner...)
	addChains(&w.live, w.t, base...)
	w.chains = map[string]bool{}
	stream := &streamer{w: w}
	for _, sp := range rows {
		w.b.Owner = sp.Key
		w.t.render(sp, stream)
		stream.end()
		if w.b.Bytes() > batchBytes {
			w.flush()
		}
		if w.err != nil {
			return
		}
	}
	w.b.Owner = nil
}

// streamer writes what a row renders to straight into the batch. Chains come
// before the elements that lead to them.
type streamer struct {
	w      *writer
	items  []item
	chains []*chain
}

func (s *streamer) element(set *nft.Set, e nft.Element) {
	if s.w.t.shared(set) {
		id := idOf(set, e)
		if s.w.d.refs[id]++; s.w.d.refs[id] > 1 {
			return
		}
	}
	s.items = append(s.items, item{set, e})
}

func (s *streamer) class(name string, build func() *chain) {
	if !s.w.chains[name] {
		s.w.chains[name] = true
		s.chains = append(s.chains, build())
	}
}

func (s *streamer) own(c *chain) { s.class(c.Name, func() *chain { return c }) }

// end writes the row. Elements of one set follow each other, so that they share
// a message.
func (s *streamer) end() {
	addChains(&s.w.b, s.w.t, s.chains...)
	slices.SortStableFunc(s.items, func(a, b item) int { return compareSets(a.set, b.set) })
	for _, i := range s.items {
		s.w.b.AddElement(i.set, i.Element)
	}
	clear(s.items)
	s.items, s.chains = s.items[:0], s.chains[:0]
}

func compareSets(a, b *nft.Set) int {
	switch {
	case a == b:
		return 0
	case a.Name < b.Name:
		return -1
	default:
		return 1
	}
}

// mend writes what is missing or wrong in a table that is there. It may be
// live, so the order matters: endpoints are added before anything leads to
// them, and removed after nothing does.
func (w *writer) mend(s *proxy.State, rows []*proxy.ServicePort, l *nft.Listing) {
	want := &wanted{t: w.t, refs: w.d.refs, chains: map[string]*chain{}, elements: map[*nft.Set]map[string]*owned{}}
	for _, sp := range rows {
		want.owner = sp.Key
		w.t.render(sp, want)
	}
	inner, base := w.t.constant(s.Node, s.CIDRs)
	for _, c := range inner {
		want.chains[c.Name] = c
	}
	w.mendSets(l)
	w.mendChains(&w.b, want.chains, l)
	w.mendElements(want, l)
	w.chains = map[string]bool{}
	for name := range want.chains {
		w.chains[name] = true
	}
	baseByName := map[string]*chain{}
	for _, c := range base {
		baseByName[c.Name] = c
	}
	w.mendChains(&w.live, baseByName, l)
	for name := range l.Chains {
		if want.chains[name] == nil && baseByName[name] == nil {
			w.gone = append(w.gone, name)
		}
	}
}

func (w *writer) mendSets(l *nft.Listing) {
	for _, s := range w.t.sets() {
		if _, ok := l.Sets[s.Name]; !ok {
			w.b.AddSet(s)
		}
	}
}

// mendChains adds chains that are missing and rewrites those whose rules differ.
func (w *writer) mendChains(b *nft.Batch, want map[string]*chain, l *nft.Listing) {
	var missing, wrong []*chain
	for _, name := range slices.Sorted(maps.Keys(want)) {
		comments, ok := l.Chains[name]
		switch {
		case !ok:
			missing = append(missing, want[name])
		case !want[name].is(comments):
			wrong = append(wrong, want[name])
		}
	}
	for _, c := range missing {
		b.AddChain(w.t.Table, &c.Chain)
	}
	for _, c := range missing {
		for _, r := range c.rules {
			b.AddRule(w.t.Table, c.Name, r)
		}
		w.flushIfLarge(b)
	}
	for _, c := range wrong {
		rewrite(b, w.t, c)
		w.flushIfLarge(b)
	}
}

// flushIfLarge commits the writer's own batch when it is large enough; the one
// that makes the rules live stays whole.
func (w *writer) flushIfLarge(b *nft.Batch) {
	if b == &w.b && b.Bytes() > batchBytes {
		w.flush()
	}
}

// mendElements writes the difference between the elements that are there and
// those wanted: first what is new or different, then what is surplus. Where
// elements are ranges it is the other way around, in one batch, since a new
// range may overlap one that goes.
func (w *writer) mendElements(want *wanted, l *nft.Listing) {
	surplus := map[*nft.Set]map[string]nft.Element{}
	for _, s := range w.t.sets() {
		if s.Dynamic || w.err != nil {
			continue
		}
		surplus[s] = map[string]nft.Element{}
		if _, ok := l.Sets[s.Name]; ok {
			w.err = w.d.conn.Elements(w.ctx, s, func(e nft.Element) { want.compare(s, e, surplus[s]) })
		}
		if s.Interval {
			w.remove(s, surplus[s])
		}
		for _, o := range want.elements[s] {
			w.add(s, o)
			w.full(s)
		}
	}
	for _, s := range slices.Backward(w.t.sets()) {
		if !s.Interval {
			w.remove(s, surplus[s])
		}
	}
}

func (w *writer) remove(s *nft.Set, elements map[string]nft.Element) {
	w.b.Owner = nil
	for _, e := range elements {
		w.b.DeleteElement(s, e)
		w.full(s)
	}
}

// add writes an element that is not there yet, in the place of another that
// has its key.
func (w *writer) add(s *nft.Set, o *owned) {
	if o.there {
		return
	}
	w.b.Owner = o.owner
	if o.instead {
		w.b.DeleteElement(s, o.Element)
	}
	w.b.AddElement(s, o.Element)
}

// sweep deletes the chains that nothing leads to any more. A chain that cannot
// go yet is left, empty, for the next Sync.
func (w *writer) sweep() {
	if len(w.gone) == 0 {
		return
	}
	slices.Sort(w.gone)
	var b nft.Batch
	for _, name := range w.gone {
		w.b.FlushChain(w.t.Table, name)
		b.DeleteChain(w.t.Table, name)
	}
	w.flush()
	if w.err == nil && w.d.conn.Commit(w.ctx, &b) != nil {
		for _, name := range w.gone {
			w.chains[name] = true
		}
	}
}

// owned is an element with the row it belongs to.
type owned struct {
	nft.Element
	owner   proxy.PortKey
	there   bool // the kernel has it
	instead bool // the kernel has another value
}

// wanted collects what all rows render to.
type wanted struct {
	t        *table
	owner    proxy.PortKey
	refs     map[elementID]int
	chains   map[string]*chain
	elements map[*nft.Set]map[string]*owned
}

func (w *wanted) element(s *nft.Set, e nft.Element) {
	if w.t.shared(s) {
		w.refs[idOf(s, e)]++
	}
	m := w.elements[s]
	if m == nil {
		m = map[string]*owned{}
		w.elements[s] = m
	}
	m[e.Key+e.KeyEnd] = &owned{Element: e, owner: w.owner}
}

// compare notes what an element of the kernel means for those wanted. The same
// element may come twice.
func (w *wanted) compare(s *nft.Set, e nft.Element, surplus map[string]nft.Element) {
	id := e.Key + e.KeyEnd
	switch o := w.elements[s][id]; {
	case o == nil:
		surplus[id] = e
	case o.Element == e:
		o.there = true
	default:
		o.instead = true
	}
}

func (w *wanted) class(name string, build func() *chain) {
	if w.chains[name] == nil {
		w.chains[name] = build()
	}
}

func (w *wanted) own(c *chain) { w.chains[c.Name] = c }
