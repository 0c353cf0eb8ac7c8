package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// elementID tells elements apart.
type elementID struct {
	set *nft.Set
	key string // with its end, for ranges
}

func idOf(s *nft.Set, e nft.Element) elementID { return elementID{s, e.Key + e.KeyEnd} }

// Apply writes the difference that a step makes, in one batch unless the step
// is very large. It lists nothing.
func (d *Dataplane) Apply(ctx context.Context, delta *proxy.Delta) error {
	if d.node == nil {
		return errors.New("apply before the first sync")
	}
	refused := map[proxy.PortKey]error{}
	for i, step := range steps(delta, d.stepSize) {
		if err := d.apply(ctx, step, refused); err != nil {
			if i == 0 && !errors.Is(err, nft.ErrUncertain) && !drifted(err) && !errors.Is(err, unix.EMSGSIZE) {
				return fmt.Errorf("%w: %w", proxy.ErrNothingApplied, err)
			}
			return err
		}
	}
	if len(refused) > 0 {
		return &proxy.RefusedError{Rows: refused}
	}
	return nil
}

// apply commits one step. Rows that the kernel refuses are left out and the
// rest is tried again, since a refusal undoes the batch.
func (d *Dataplane) apply(ctx context.Context, delta *proxy.Delta, refused map[proxy.PortKey]error) error {
	for {
		c := d.change(delta, refused)
		err := d.conn.Commit(ctx, c.batch())
		if err == nil {
			d.applied(ctx, delta, c)
			return nil
		}
		if !blame(err, refused) {
			return err
		}
	}
}

// blame finds the rows whose operations were refused. It reports false when
// there is an operation that belongs to no row, or no new row to leave out.
func blame(err error, refused map[proxy.PortKey]error) bool {
	var ce *nft.CommitError
	if !errors.As(err, &ce) || drifted(err) {
		return false
	}
	found := false
	for _, f := range ce.Failures {
		key, ok := f.Op.Owner.(proxy.PortKey)
		if !ok {
			return false
		}
		if refused[key] == nil {
			refused[key] = fmt.Errorf("%v: %w", f.Op, f.Err)
			found = true
		}
	}
	return found
}

// drifted reports whether the kernel lacks what it should have: somebody took it
// away, and only Sync is right then.
func drifted(err error) bool { return errors.Is(err, unix.ENOENT) }

// change collects the operations of a step.
type change struct {
	d       *Dataplane
	deletes nft.Batch
	chains  nft.Batch
	adds    nft.Batch
	refs    map[elementID]int   // how the number of rows that share an element changes
	made    map[*table][]string // chains that are new
	dropped map[*table][]string // chains of rows that are gone
}

// change renders the rows of a step and takes the differences.
func (d *Dataplane) change(delta *proxy.Delta, refused map[proxy.PortKey]error) *change {
	c := &change{d: d, refs: map[elementID]int{}, made: map[*table][]string{}, dropped: map[*table][]string{}}
	if delta.Node != nil || delta.CIDRs != nil {
		c.constants(delta)
	}
	for _, old := range delta.Removes {
		if refused[old.Key] == nil {
			c.row(old.Key, old, nil)
		}
	}
	for _, u := range delta.Upserts {
		if refused[u.New.Key] == nil {
			c.row(u.New.Key, u.Old, u.New)
		}
	}
	c.shared()
	return c
}

// constants rewrites the constant chains that look different now.
func (c *change) constants(delta *proxy.Delta) {
	node, cidrs := c.d.after(delta)
	for _, t := range c.d.tables {
		was, _ := t.constant(c.d.node, c.d.cidrs)
		is, _ := t.constant(node, cidrs)
		for i := range is {
			if !sameRules(was[i], is[i]) {
				rewrite(&c.chains, t, is[i])
			}
		}
	}
}

// row takes the difference between a row's old and new form; either may be nil.
func (c *change) row(key proxy.PortKey, old, cur *proxy.ServicePort) {
	t := c.d.table(key.Family)
	if t == nil {
		return // not a family of this node
	}
	was, is := newRendering(), newRendering()
	if old != nil {
		t.render(old, was)
	}
	if cur != nil {
		t.render(cur, is)
	}
	c.deletes.Owner, c.chains.Owner, c.adds.Owner = key, key, key
	for _, item := range was.items {
		if t.shared(item.set) {
			c.refs[idOf(item.set, item.Element)]--
		} else if is.byID[idOf(item.set, item.Element)] != item.Element {
			c.deletes.DeleteElement(item.set, item.Element)
		}
	}
	for _, item := range is.items {
		if t.shared(item.set) {
			c.refs[idOf(item.set, item.Element)]++
		} else if was.byID[idOf(item.set, item.Element)] != item.Element {
			c.adds.AddElement(item.set, item.Element)
		}
	}
	c.rowChains(t, was, is)
	c.deletes.Owner, c.chains.Owner, c.adds.Owner = nil, nil, nil
}

// rowChains adds the chains that the new form needs, and empties those that
// only the old one had. An empty chain is deleted after the batch: before Linux
// 6.2 it still counts as referred to by the element that the batch deletes.
func (c *change) rowChains(t *table, was, is *rendering) {
	var made []*chain
	for name, build := range is.classes {
		if !c.d.chains[t][name] && !slices.Contains(c.made[t], name) {
			made = append(made, build())
		}
	}
	for name, cur := range is.chains {
		switch old := was.chains[name]; {
		case old == nil && !c.d.chains[t][name]:
			made = append(made, cur)
		case old == nil || !sameRules(old, cur):
			rewrite(&c.chains, t, cur)
		}
	}
	addChains(&c.chains, t, made...)
	for _, m := range made {
		c.made[t] = append(c.made[t], m.Name)
	}
	for name := range was.chains {
		if is.chains[name] == nil {
			c.chains.FlushChain(t.Table, name)
			c.dropped[t] = append(c.dropped[t], name)
		}
	}
}

// shared adds the elements of shared sets that get their first row, and
// deletes those that lose their last.
func (c *change) shared() {
	for id, by := range c.refs {
		before := c.d.refs[id]
		e := nft.Element{Key: id.key}
		switch {
		case before == 0 && before+by > 0:
			c.adds.AddElement(id.set, e)
		case before > 0 && before+by == 0:
			c.deletes.DeleteElement(id.set, e)
		}
	}
}

// batch puts the operations in an order in which each is valid.
func (c *change) batch() *nft.Batch {
	b := &c.deletes
	b.Ops = append(b.Ops, c.chains.Ops...)
	b.Ops = append(b.Ops, c.adds.Ops...)
	return b
}

// applied remembers what the kernel has now, and sweeps up.
func (d *Dataplane) applied(ctx context.Context, delta *proxy.Delta, c *change) {
	d.node, d.cidrs = d.after(delta)
	for id, by := range c.refs {
		if d.refs[id] += by; d.refs[id] <= 0 {
			delete(d.refs, id)
		}
	}
	for t, names := range c.made {
		for _, name := range names {
			d.chains[t][name] = true
		}
	}
	for t, names := range c.dropped {
		var b nft.Batch
		for _, name := range names {
			b.DeleteChain(t.Table, name)
		}
		if d.conn.Commit(ctx, &b) == nil {
			for _, name := range names {
				delete(d.chains[t], name)
			}
		}
	}
}

// rendering keeps what a row renders to.
type rendering struct {
	items   []item
	byID    map[elementID]nft.Element
	classes map[string]func() *chain
	chains  map[string]*chain
}

type item struct {
	set *nft.Set
	nft.Element
}

func newRendering() *rendering {
	return &rendering{byID: map[elementID]nft.Element{}, classes: map[string]func() *chain{}, chains: map[string]*chain{}}
}

func (r *rendering) element(s *nft.Set, e nft.Element) {
	r.items = append(r.items, item{s, e})
	r.byID[idOf(s, e)] = e
}

func (r *rendering) class(name string, build func() *chain) { r.classes[name] = build }
func (r *rendering) own(c *chain)                           { r.chains[c.Name] = c }

// addChains adds chains with their rules, which may refer to any of the chains.
func addChains(b *nft.Batch, t *table, chains ...*chain) {
	for _, c := range chains {
		b.AddChain(t.Table, &c.Chain)
	}
	for _, c := range chains {
		for _, r := range c.rules {
			b.AddRule(t.Table, c.Name, r)
		}
	}
}

// rewrite gives a chain that is there new rules.
func rewrite(b *nft.Batch, t *table, c *chain) {
	b.FlushChain(t.Table, c.Name)
	for _, r := range c.rules {
		b.AddRule(t.Table, c.Name, r)
	}
}

func sameRules(a, b *chain) bool {
	return slices.EqualFunc(a.rules, b.rules, func(x, y *nft.Rule) bool { return x.Comment == y.Comment })
}
