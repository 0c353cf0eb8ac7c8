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

// write makes changes with a restore per family, or two. Tables are committed one by
// one, so those that come before a refused one are taken back, unless a Sync
// will look at all of them again.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	done, err := d.writeFamilies(ctx, some)
	if err == nil || len(done) == 0 || d.syncing || errors.Is(err, proxy.ErrNeedSync) {
		return err
	}
	var back []*change
	for _, c := range done {
		back = append(back, &change{ID: c.ID, Old: c.New, New: c.Old, Had: c.Has, Has: c.Had})
	}
	if _, failed := d.writeFamilies(ctx, back); failed != nil {
		return fmt.Errorf("%w: %v; take back what was written before: %w", proxy.ErrNeedSync, err, failed)
	}
	return err
}

// writeFamilies makes changes up to the first error, and returns those that were made.
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

// write makes changes of one family, and returns those that were made. What refuses
// connections to a row goes after the rules that forward them have come: in between
// they would meet neither, and a NodePort would be the node's own.
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
// [differ.Refusal] if single changes are to blame.
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

// refusal tells a refused line by the changes that are to blame for it: all that need
// what the kernel lacks, of which there may be very many, or the one of that line. The
// legacy variant does not say which line of a table it is: then it is the only row there
// is.
func (f *family) refusal(ctx context.Context, at line, some []*change, err error) error {
	refuse := func(reason error, drift bool, blamed ...*change) error {
		r := &differ.Refusal[id, value]{}
		for _, c := range blamed {
			r.Failures = append(r.Failures, differ.Failure[id, value]{Change: c, Err: reason, Drift: drift})
		}
		return r
	}
	if at.change != nil && at.step == deletes {
		f.rewrite[at.change.ID.chainRef] = true
	}
	if at.change != nil && (at.step == deletes || at.step == removes || at.disturbed) {
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

// requirement is a part of the kernel that some rows need and that may be missing.
type requirement struct {
	match        string // rules that need it have this
	what, module string
	rule         string // one that needs it
}

var requirements = []requirement{
	{"-m recent ", "session affinity", "xt_recent", "-m recent --rcheck --seconds 1 --reap --name " + kubeProbe + " --rsource -j RETURN"},
	{"-m sctp ", "protocol SCTP", "xt_sctp", "-p sctp -m sctp --dport 1 -j RETURN"},
	{"-m statistic ", "several endpoints", "xt_statistic", "-m statistic --mode random --probability 0.5 -j RETURN"},
}

// lacks returns why the kernel does not take a rule; nil if it does. It tries one
// in a chain that nothing leads to.
func (f *family) lacks(ctx context.Context, need requirement) (reason, err error) {
	probe := &change{ID: id{f: f, chainRef: chainRef{nat, kubeProbe}}, New: value{rules: []string{need.rule}}, Has: true}
	_, refused, err := f.restore(ctx, []*change{probe}, script([]*change{probe}))
	switch {
	case refused != nil:
		return fmt.Errorf("%s needs module %s of the kernel: %w", need.what, need.module, err), nil
	case err != nil:
		return nil, err
	}
	_, err = f.write(ctx, []*change{{ID: probe.ID, Old: probe.New, Had: true}})
	return nil, err
}

type line struct {
	table  string
	step   step
	text   string
	change *change // what it is for; nil: all of the table

	disturbed bool // it was refused after another process changed what a Sync had made right
}

// step is when a line comes within its table: in this order each is valid.
type step uint8

const (
	begins step = iota
	declares
	deletes
	rules
	constantsFirst
	rowRules
	constantsLast
	removes
	commits
)

var tableOrder = []string{mangle, filter, nat}

// script returns what makes changes. The constant rules of a chain that rows
// share keep their place.
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
			add(deletes, "-D", c.ID.rule)
		case c.ID.rule != "" && p.rowsFirst():
			add(rowRules, "-I", c.ID.rule)
		case c.ID.rule != "":
			add(rowRules, "-A", c.ID.rule)
		case p.builtIn():
			add(deletes, "-D", c.Old.rules...)
			insert(constantsLast, c.New.rules)
		case !c.Has && !c.Old.used:
			emit(declares, declaration(p))
			emit(removes, "-X "+p.chain)
		case !c.Has && len(c.Old.rules) > 0:
			emit(declares, declaration(p)) // it cannot go
		case !c.Has:
		case !p.shared():
			emit(declares, declaration(p))
			add(rules, "-A", c.New.rules...)
		default:
			if c.Had && !c.Old.foreign {
				add(deletes, "-D", c.Old.rules...)
			} else {
				emit(declares, declaration(p))
			}
			if p.rowsFirst() {
				add(constantsLast, "-A", c.New.rules...)
			} else {
				insert(constantsFirst, c.New.rules)
			}
		}
	}
	for table := range tables {
		out = append(out, line{table: table, step: begins, text: "*" + table}, line{table: table, step: commits, text: "COMMIT"})
	}
	slices.SortStableFunc(out, func(a, b line) int {
		o := cmp.Or(cmp.Compare(slices.Index(tableOrder, a.table), slices.Index(tableOrder, b.table)), cmp.Compare(a.step, b.step))
		switch {
		case o != 0 || a.step != rowRules && a.step != deletes:
			return o // else in an order that people can read, and in which rules are found soon that are to go
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
