package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// write makes changes in one batch. Chains that nothing leads to any more are
// deleted afterwards, one by one: before Linux 6.2 a batch that deletes the last
// element that leads to a chain and the chain is refused. One that cannot go yet
// is left, empty, for the next Sync.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	b := &d.batch
	for _, c := range some {
		if b.Owner = c; c.Has {
			addContainer(b, c)
		} else if c.ID.kind == aChain {
			b.FlushChain(c.ID.t.Table, c.ID.key)
		}
	}
	for _, c := range some {
		if b.Owner = c; c.ID.kind == anElement && c.Had {
			b.DeleteElement(c.ID.set, c.ID.element(c.Old))
		}
	}
	for _, c := range some {
		switch b.Owner = c; {
		case c.ID.kind == aChain && c.Has:
			c.ID.t.rewrite(b, c.New.chain, c.Had || c.New.chain.rank != rankConstant)
		case c.ID.kind == otherTable:
			b.DeleteTable(nft.Table{Family: c.ID.t.Table.Family, Name: kubeProxyTable})
		}
	}
	for _, c := range some {
		if b.Owner = c; c.ID.kind == anElement && c.Has {
			b.AddElement(c.ID.set, c.ID.element(c.New))
		}
	}
	if err := d.conn.Commit(ctx, b); err != nil {
		d.batch = nft.Batch{} // the error refers to the operations
		return d.refusal(err)
	}
	if len(b.Ops) > 2*syncBytes/64 { // an element takes about as much
		d.batch = nft.Batch{}
	}
	d.batch.Reset() // it refers to all changes
	for _, c := range some {
		if !c.Has {
			d.removed(ctx, c)
		}
	}
	return nil
}

// addContainer adds what others are in: a table, a set, or a chain without rules.
func addContainer(b *nft.Batch, c *change) {
	switch t := c.ID.t; c.ID.kind {
	case aTable:
		if c.Had {
			b.DeleteTable(t.Table) // it cannot be mended
		}
		b.AddTable(t.Table)
	case aSet:
		b.AddSet(c.ID.set)
	case aChain:
		if !c.Had {
			b.AddChain(t.Table, &c.New.chain.Chain)
		}
	}
}

// rewrite gives a chain that is there its rules.
func (t *table) rewrite(b *nft.Batch, c *chain, flush bool) {
	if flush {
		b.FlushChain(t.Table, c.Name)
	}
	for _, r := range c.rules {
		b.AddRule(t.Table, c.Name, r)
	}
}

// removed finishes the removal of an object.
func (d *Dataplane) removed(ctx context.Context, c *change) {
	var b nft.Batch
	switch t := c.ID.t; {
	case c.ID.kind == aChain:
		b.DeleteChain(t.Table, c.ID.key)
	case c.ID.kind == aSet:
		b.DeleteSet(t.Table, c.ID.set.Name)
	case c.ID.set == t.classSet && c.Old.chain != nil:
		t.classes.forget(c.Old.chain.class)
	}
	if len(b.Ops) > 0 && d.conn.Commit(ctx, &b) != nil {
		c.ID.t.cleanupFailures.Add(1)
	}
}

// refusal tells a refused batch by the changes that were refused.
func (d *Dataplane) refusal(err error) error {
	var refused *nft.CommitError
	switch {
	case errors.As(err, &refused):
		out := &differ.Refusal[id, value]{}
		for _, f := range refused.Failures {
			c, _ := f.Op.Owner.(*change)
			if c != nil && d.listedTwice && errors.Is(f.Err, unix.ENOENT) {
				d.absent[c.ID] = true
			}
			out.Failures = append(out.Failures, differ.Failure[id, value]{
				Change: c, Err: fmt.Errorf("%v: %w", f.Op, f.Err), Drift: d.drifted(f.Err) && (c == nil || !d.absent[c.ID]),
			})
		}
		return out
	case errors.Is(err, nft.ErrUncertain), errors.Is(err, unix.EMSGSIZE), d.drifted(err):
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	default:
		return err
	}
}

// drifted reports whether the kernel lacks what it should have, or has what it
// should not: somebody changed it, and only Sync is right then. A Sync blames a row
// for what is there already, or is not, only after it has listed everything again.
func (d *Dataplane) drifted(err error) bool {
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOENT):
		return !d.listedTwice
	case errors.Is(err, unix.EBUSY):
		return !d.syncing
	default:
		return false
	}
}
