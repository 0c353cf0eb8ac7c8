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

// write writes changes in one batch. Chains and sets that are no longer used are deleted
// afterwards, one by one: before Linux 6.2 the kernel refuses a batch that deletes a chain
// together with the last element that refers to it. A chain that cannot be deleted yet
// is left, empty, for the next Sync.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	b := &d.batch
	for _, c := range some {
		if b.Owner = c; c.Has {
			addContainer(b, c)
		} else if c.ID.kind == kindChain {
			b.FlushChain(c.ID.t.Table, c.ID.key)
		}
	}
	for _, c := range some {
		if b.Owner = c; c.ID.kind == kindElement && c.Had {
			b.DeleteElement(c.ID.set, c.ID.element(c.Old))
		}
	}
	for _, c := range some {
		switch b.Owner = c; {
		case c.ID.kind == kindChain && c.Has:
			c.ID.t.rewrite(b, c.New.chain, c.Had || c.New.chain.rank != rankConstant)
		case c.ID.kind == kindKubeProxyTable:
			b.DeleteTable(nft.Table{Family: c.ID.t.Table.Family, Name: kubeProxyTable})
		}
	}
	for _, c := range some {
		if b.Owner = c; c.ID.kind == kindElement && c.Has {
			b.AddElement(c.ID.set, c.ID.element(c.New))
		}
	}
	if err := d.conn.Commit(ctx, b); err != nil {
		d.batch = nft.Batch{} // the error refers to its operations, so it cannot be reused
		return d.refusal(err)
	}
	if len(b.Ops) > 2*syncBytes/64 { // an element takes about 64 bytes: do not keep a large batch's memory
		d.batch = nft.Batch{}
	}
	d.batch.Reset() // release the changes that it refers to
	for _, c := range some {
		if !c.Has {
			d.finishRemoval(ctx, c)
		}
	}
	return nil
}

// addContainer adds a table, a set, or a chain without rules, or replaces a table.
func addContainer(b *nft.Batch, c *change) {
	switch t := c.ID.t; c.ID.kind {
	case kindTable:
		if c.Had {
			b.DeleteTable(t.Table) // it cannot be repaired
		}
		b.AddTable(t.Table)
	case kindSet:
		b.AddSet(c.ID.set)
	case kindChain:
		if !c.Had {
			b.AddChain(t.Table, &c.New.chain.Chain)
		}
	}
}

// rewrite adds the rules of a chain that exists, after deleting its old rules if flush is true.
func (t *table) rewrite(b *nft.Batch, c *chain, flush bool) {
	if flush {
		b.FlushChain(t.Table, c.Name)
	}
	for _, r := range c.rules {
		b.AddRule(t.Table, c.Name, r)
	}
}

// finishRemoval deletes a chain or set after the batch that removed what refers to it, and
// releases the number of a removed class.
func (d *Dataplane) finishRemoval(ctx context.Context, c *change) {
	var b nft.Batch
	switch t := c.ID.t; {
	case c.ID.kind == kindChain:
		b.DeleteChain(t.Table, c.ID.key)
	case c.ID.kind == kindSet:
		b.DeleteSet(t.Table, c.ID.set.Name)
	case c.ID.set == t.classSet && c.Old.chain != nil:
		t.classes.forget(c.Old.chain.class)
	}
	if len(b.Ops) > 0 && d.conn.Commit(ctx, &b) != nil {
		c.ID.t.cleanupFailures.Add(1)
	}
}

// refusal converts an error of Commit: a [nft.CommitError] becomes a [differ.Refusal] of the
// changes that the operations were made for. An error after which the kernel's state is
// unknown wraps [proxy.ErrNeedSync].
func (d *Dataplane) refusal(err error) error {
	var refused *nft.CommitError
	switch {
	case errors.As(err, &refused):
		out := &differ.Refusal[id, value]{}
		for _, f := range refused.Failures {
			c, _ := f.Op.Owner.(*change)
			if c != nil && d.relisted && errors.Is(f.Err, unix.ENOENT) {
				d.unsupported[c.ID] = true
			}
			out.Failures = append(out.Failures, differ.Failure[id, value]{
				Change: c, Err: fmt.Errorf("%v: %w", f.Op, f.Err), Drift: d.drifted(f.Err) && (c == nil || !d.unsupported[c.ID]),
			})
		}
		return out
	case errors.Is(err, nft.ErrUncertain), errors.Is(err, unix.EMSGSIZE), d.drifted(err):
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	default:
		return err
	}
}

// drifted reports whether an error means that the kernel's state is not what we assume:
// another process changed it, and only a Sync can repair it. A Sync blames a row for EEXIST
// and ENOENT only after it has listed everything again.
func (d *Dataplane) drifted(err error) bool {
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOENT):
		return !d.relisted
	case errors.Is(err, unix.EBUSY):
		return !d.syncing
	default:
		return false
	}
}
