package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// write makes changes, by one or two restores per family. Tables are committed one
// by one, so if one is refused, what was committed before is reverted. During a Sync
// that is not necessary: it lists everything again.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	done, err := d.writeFamilies(ctx, some)
	if err == nil || len(done) == 0 || d.syncing || errors.Is(err, proxy.ErrNeedSync) {
		return err
	}
	var revert []*change
	for _, c := range done {
		revert = append(revert, &change{ID: c.ID, Old: c.New, New: c.Old, Had: c.Has, Has: c.Had})
	}
	if _, failed := d.writeFamilies(ctx, revert); failed != nil {
		return fmt.Errorf("%w: %v; revert what was written before: %w", proxy.ErrNeedSync, err, failed)
	}
	return err
}

// writeFamilies makes changes up to the first error and returns those that were made.
func (d *Dataplane) writeFamilies(ctx context.Context, some []*change) (done []*change, err error) {
	for _, f := range d.families {
		own := slices.DeleteFunc(slices.Clone(some), func(c *change) bool { return c.ID.f != f })
		committed, err := f.write(ctx, own)
		if done = append(done, committed...); err != nil {
			return done, err
		}
	}
	return done, nil
}

// write makes changes of one family and returns those that were made. Rules that
// refuse connections to a row are removed in a second restore, after the rules that
// forward them are in place. Otherwise a connection could meet neither, and one to a
// NodePort would reach a socket of the node.
func (f *family) write(ctx context.Context, some []*change) (committed []*change, err error) {
	first, last := some, []*change(nil)
	if slices.ContainsFunc(some, func(c *change) bool { return c.ID.table == nat && c.Has }) {
		refuses := func(c *change) bool { return c.ID.table == filter && c.ID.rule != "" && !c.Has }
		first = slices.DeleteFunc(slices.Clone(some), refuses)
		last = slices.DeleteFunc(slices.Clone(some), func(c *change) bool { return !refuses(c) })
	}
	committed, err = f.writeOnce(ctx, first)
	if err != nil {
		return committed, err
	}
	after, err := f.writeOnce(ctx, last)
	return append(committed, after...), err
}

// writeOnce makes changes of one family by one restore. The error is a
// [differ.Refusal] if single changes caused it.
func (f *family) writeOnce(ctx context.Context, some []*change) (committed []*change, err error) {
	lines := script(some)
	if len(lines) == 0 {
		return some, nil
	}
	committed, refused, err := f.restore(ctx, some, lines)
	if refused != nil {
		err = f.refusal(ctx, *refused, some, err)
	}
	return committed, err
}

// refusal attributes a refused line to changes: if the kernel lacks a module, to all
// changes that need it, of which there may be very many; otherwise to the change of
// that line. The legacy variant names only the table; then the refusal can be
// attributed only if all changes belong to a single row. Otherwise it returns err.
func (f *family) refusal(ctx context.Context, at line, some []*change, err error) error {
	refuse := func(reason error, drift bool, failed ...*change) error {
		r := &differ.Refusal[id, value]{}
		for _, c := range failed {
			r.Failures = append(r.Failures, differ.Failure[id, value]{Change: c, Err: reason, Drift: drift})
		}
		return r
	}
	if at.change != nil && at.step == stepDelete {
		f.rewrite[at.change.ID.chainRef] = true
	}
	if at.change != nil && (at.step == stepDelete || at.step == stepRemoveChain || at.afterForeignChange) {
		return refuse(err, true, at.change)
	}
	for _, need := range requirements {
		if at.change != nil && !strings.Contains(at.text, need.match) {
			continue
		}
		concerned := slices.DeleteFunc(slices.Clone(some), func(c *change) bool {
			return !c.Has || !slices.ContainsFunc(c.New.rules, func(rule string) bool { return strings.Contains(rule, need.match) })
		})
		if len(concerned) == 0 {
			continue
		}
		reason, failed := f.lacks(ctx, need)
		switch {
		case failed != nil:
			return errors.Join(err, failed)
		case reason != nil:
			return refuse(reason, false, concerned...)
		}
	}
	if at.change != nil {
		return refuse(err, false, at.change)
	}
	rows := map[proxy.PortKey]*change{}
	for _, c := range some {
		if c.New.row != nil {
			rows[*c.New.row] = c
		}
	}
	if len(rows) == 1 {
		return refuse(err, false, slices.Collect(maps.Values(rows))...)
	}
	return err
}

// requirement is a kernel module that some rows need and that may be missing.
type requirement struct {
	match   string // part of every rule that needs the module
	feature string
	module  string
	rule    string // a rule to try
}

var requirements = []requirement{
	{"-m recent ", "session affinity", "xt_recent", "-m recent --rcheck --seconds 1 --reap --name " + kubeProbe + " --rsource -j RETURN"},
	{"-m sctp ", "protocol SCTP", "xt_sctp", "-p sctp -m sctp --dport 1 -j RETURN"},
	{"-m statistic ", "several endpoints", "xt_statistic", "-m statistic --mode random --probability 0.5 -j RETURN"},
}

// lacks returns why the kernel does not meet a requirement, or nil if it does. It
// tries a rule in a chain that no rule jumps to.
func (f *family) lacks(ctx context.Context, need requirement) (reason, err error) {
	probe := &change{ID: id{f: f, chainRef: chainRef{nat, kubeProbe}}, New: value{rules: []string{need.rule}}, Has: true}
	_, refused, err := f.restore(ctx, []*change{probe}, script([]*change{probe}))
	switch {
	case refused != nil:
		return fmt.Errorf("%s needs kernel module %s: %w", need.feature, need.module, err), nil
	case err != nil:
		return nil, err
	}
	_, err = f.write(ctx, []*change{{ID: probe.ID, Old: probe.New, Had: true}})
	return nil, err
}

// line is a line of input for iptables-restore.
type line struct {
	table  string
	step   step
	text   string
	change *change // the change that needs it; nil if it is for the whole table

	afterForeignChange bool // it was refused after another process changed tables that were in sync
}

// step is the position of a line within its table. In this order every line is valid.
type step uint8

const (
	stepTable step = iota
	stepDeclare
	stepDelete
	stepChainRules
	stepConstantFirst
	stepRowRules
	stepConstantLast
	stepRemoveChain
	stepCommit
)

var tableOrder = []string{mangle, filter, nat}

// script returns the input for iptables-restore that makes changes. In chains that
// rows share, constant rules stay before, or after, those of rows.
func script(some []*change) (out []line) {
	tables := map[string]bool{}
	for _, c := range some {
		p := c.ID.chainRef
		emit := func(s step, text string) {
			tables[p.table] = true
			out = append(out, line{table: p.table, step: s, text: text, change: c})
		}
		add := func(s step, command string, rules ...string) {
			for _, rule := range rules {
				emit(s, command+" "+p.chain+" "+rule)
			}
		}
		insert := func(s step, rules []string) {
			for _, rule := range slices.Backward(rules) {
				add(s, "-I", rule)
			}
		}
		switch {
		case c.ID.rule != "" && !c.Has:
			add(stepDelete, "-D", c.ID.rule)
		case c.ID.rule != "" && p.rowsFirst():
			add(stepRowRules, "-I", c.ID.rule)
		case c.ID.rule != "":
			add(stepRowRules, "-A", c.ID.rule)
		case p.builtIn():
			add(stepDelete, "-D", c.Old.rules...)
			insert(stepConstantLast, c.New.rules)
		case !c.Has && !c.Old.used:
			emit(stepDeclare, declaration(p))
			emit(stepRemoveChain, "-X "+p.chain)
		case !c.Has && len(c.Old.rules) > 0:
			emit(stepDeclare, declaration(p)) // it cannot be removed, only flushed
		case !c.Has:
		case !p.shared():
			emit(stepDeclare, declaration(p))
			add(stepChainRules, "-A", c.New.rules...)
		default:
			if c.Had && !c.Old.foreign {
				add(stepDelete, "-D", c.Old.rules...)
			} else {
				emit(stepDeclare, declaration(p))
			}
			if p.rowsFirst() {
				add(stepConstantLast, "-A", c.New.rules...)
			} else {
				insert(stepConstantFirst, c.New.rules)
			}
		}
	}
	for table := range tables {
		out = append(out, line{table: table, step: stepTable, text: "*" + table}, line{table: table, step: stepCommit, text: "COMMIT"})
	}
	slices.SortStableFunc(out, func(a, b line) int {
		o := cmp.Or(cmp.Compare(slices.Index(tableOrder, a.table), slices.Index(tableOrder, b.table)), cmp.Compare(a.step, b.step))
		switch {
		case o != 0 || a.step != stepRowRules && a.step != stepDelete:
			return o
		// Rows are in the order of their text, so that people can read it, and so that the
		// programs find rules to delete, which come in the same order, without a long search.
		case strings.HasPrefix(a.text, "-I") && strings.HasPrefix(b.text, "-I"):
			a, b = b, a
		}
		return strings.Compare(a.text, b.text)
	})
	return out
}

func declaration(p chainRef) string { return ":" + p.chain + " - [0:0]" }

func text(lines []line) []byte {
	var b []byte
	for _, l := range lines {
		b = append(append(b, l.text...), '\n')
	}
	return b
}
