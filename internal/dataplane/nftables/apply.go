package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Apply writes the difference that a step makes, in one batch unless the step
// is very large. It lists nothing.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if d.node == nil {
		return nil, fmt.Errorf("apply before the first sync: %w", proxy.ErrNeedSync)
	}
	delta := changed.Delta(want, func(k proxy.PortKey) *proxy.ServicePort { return d.rows[k] },
		func(proxy.HealthCheckKey) *proxy.HealthCheck { return nil })
	refused := proxy.Refused{}
	for _, step := range steps(delta, d.stepSize) {
		if err := d.apply(ctx, step, refused); err != nil {
			if errors.Is(err, nft.ErrUncertain) || drifted(err) || errors.Is(err, unix.EMSGSIZE) {
				return nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
			}
			return nil, err
		}
		d.took(step, refused)
	}
	if delta.Node != nil {
		d.localnet.Open(ctx)
	}
	return refused, nil
}

// took remembers the rows that a step has written.
func (d *Dataplane) took(step *proxy.Delta, refused proxy.Refused) {
	for _, r := range step.Removes {
		if refused[r.Key] == nil {
			delete(d.rows, r.Key)
		}
	}
	for _, u := range step.Upserts {
		if refused[u.New.Key] == nil {
			d.rows[u.New.Key] = u.New
		}
	}
}

// apply commits one step. Rows that the kernel refuses are left out and the
// rest is tried again, since a refusal undoes the batch.
func (d *Dataplane) apply(ctx context.Context, delta *proxy.Delta, refused map[proxy.PortKey]error) error {
	guard := d.guard
	if delta.Node != nil {
		guard = d.localnet.Guard(ctx, delta.Node.OpensLoopback())
	}
	for {
		c := d.change(delta, guard, refused)
		err := d.conn.Commit(ctx, c.batch())
		if err == nil {
			d.node, d.cidrs = d.after(delta)
			d.guard = guard
			for _, t := range c.tables {
				t.applied(ctx, d.conn)
			}
			return nil
		}
		c.takeBack(delta)
		if !c.users.blame(err, refused, drifted) {
			return err
		}
	}
}

// drifted reports whether the kernel lacks what it should have, or has what it
// should not: somebody changed it, and only Sync is right then.
func drifted(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}

// change collects the operations of a step.
type change struct {
	deletes nft.Batch
	chains  nft.Batch
	adds    nft.Batch
	tables  []*tableChange
	users   classUsers
}

// change renders the rows of a step and takes the differences.
func (d *Dataplane) change(delta *proxy.Delta, guard localnet.Guard, refused map[proxy.PortKey]error) *change {
	c := &change{users: classUsers{}}
	if delta.Node != nil || delta.CIDRs != nil {
		c.constants(d, delta, guard)
	}
	for _, t := range d.tables {
		c.tables = append(c.tables, newTableChange(c, t))
	}
	for _, old := range delta.Removes {
		c.row(old.Key, proxy.Upsert{Old: old}, refused)
	}
	for _, u := range delta.Upserts {
		c.row(u.New.Key, u, refused)
	}
	for _, t := range c.tables {
		t.writeShared()
	}
	return c
}

// constants rewrites the constant chains that look different now.
func (c *change) constants(d *Dataplane, delta *proxy.Delta, guard localnet.Guard) {
	node, cidrs := d.after(delta)
	for _, t := range d.tables {
		was, wasBase := t.constant(d.node, d.cidrs, d.guard)
		is, isBase := t.constant(node, cidrs, guard)
		was, is = append(was, wasBase...), append(is, isBase...)
		for i := range is {
			if !slices.Equal(t.listed(was[i]), t.listed(is[i])) {
				rewrite(&c.chains, t, is[i])
			}
		}
	}
}

// row takes the difference between a row's old and new form, unless the row is
// refused.
func (c *change) row(key proxy.PortKey, u proxy.Upsert, refused map[proxy.PortKey]error) {
	t := c.table(key.Family)
	if t == nil || refused[key] != nil {
		return // not a family of this node, or left out
	}
	t.key = key
	c.deletes.Owner, c.adds.Owner = key, key
	if err := t.t.change(u.Old, u.New, t); err != nil {
		refused[key] = err
	}
	c.deletes.Owner, c.adds.Owner = nil, nil
}

// table returns the part of a family, or nil.
func (c *change) table(f proxy.Family) *tableChange {
	for _, t := range c.tables {
		if t.t.family == f {
			return t
		}
	}
	return nil
}

// takeBack takes back the ids that were given for a batch that was refused: its
// rows are as they were.
func (c *change) takeBack(delta *proxy.Delta) {
	for _, u := range delta.Upserts {
		if t := c.table(u.New.Key.Family); t != nil {
			t.t.blocks.trim(keyOfBlock(u.New), u.Old)
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

// addClass adds a class with its chains. A chain that is left of an earlier time
// is made anew; the one that remembers may be in use.
func addClass(b *nft.Batch, t *table, c class) {
	chains := t.classChains(c)
	if len(chains) > 1 && t.classes.remembers(c) {
		chains = chains[:1]
	}
	for _, out := range slices.Backward(chains) {
		b.AddChain(t.Table, &out.Chain)
		rewrite(b, t, out)
	}
	b.AddElement(t.classSet, t.classes.element(c))
}
