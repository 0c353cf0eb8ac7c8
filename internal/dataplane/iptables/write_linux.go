package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// write makes changes with one restore per family. Tables are committed one by
// one, so those that come before a refused one are taken back, unless a Sync
// will look at all of them again.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	var done []*change
	for _, f := range d.families {
		committed, err := f.write(ctx, f.own(some))
		done = append(done, committed...)
		if err == nil {
			continue
		}
		if len(done) > 0 && !d.syncing {
			if failed := d.takeBack(ctx, done); failed != nil {
				return fmt.Errorf("%w: %v; take back what was written before: %w", proxy.ErrNeedSync, err, failed)
			}
		}
		return err
	}
	return nil
}

// takeBack undoes changes.
func (d *Dataplane) takeBack(ctx context.Context, done []*change) error {
	var back []*change
	for _, c := range done {
		back = append(back, &change{ID: c.ID, Old: c.New, New: c.Old, Had: c.Has, Has: c.Had})
	}
	for _, f := range d.families {
		if _, err := f.write(ctx, f.own(back)); err != nil {
			return err
		}
	}
	return nil
}

// own returns the changes of a family.
func (f *family) own(all []*change) (own []*change) {
	for _, c := range all {
		if c.ID.f == f {
			own = append(own, c)
		}
	}
	return own
}

// write makes changes of one family, and returns those that were made. The error
// is a [differ.Refusal] if single changes are to blame.
func (f *family) write(ctx context.Context, some []*change) (committed []*change, err error) {
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

// refusal tells a refused line by the changes that are to blame for it. The legacy
// variant does not say which line of a table it is: then it is what needs
// something that the kernel lacks, or the only row there is.
func (f *family) refusal(ctx context.Context, at line, some []*change, err error) error {
	r := &differ.Refusal[id, value]{}
	if at.change != nil {
		r.Failures = []differ.Failure[id, value]{{Change: at.change, Err: err, Drift: at.deletes || f.changedByOthers()}}
		return r
	}
	for _, need := range requirements() {
		var concerned []*change
		for _, c := range some {
			if c.Has && slices.ContainsFunc(c.ID.all(c.New), func(rule string) bool { return strings.Contains(rule, need.match) }) {
				concerned = append(concerned, c)
			}
		}
		if len(concerned) == 0 {
			continue
		}
		reason, failed := f.lacks(ctx, need)
		if failed != nil {
			return errors.Join(err, failed)
		}
		for _, c := range concerned {
			if reason != nil {
				r.Failures = append(r.Failures, differ.Failure[id, value]{Change: c, Err: reason})
			}
		}
	}
	if c := onlyRow(some); len(r.Failures) == 0 && c != nil {
		r.Failures = []differ.Failure[id, value]{{Change: c, Err: err}}
	}
	if len(r.Failures) == 0 {
		return err
	}
	return r
}

// onlyRow returns a change of the row that all are of; nil if there are several.
func onlyRow(some []*change) (one *change) {
	for _, c := range some {
		switch row := c.New.row; {
		case row == nil || one != nil && *one.New.row == *row:
		case one != nil:
			return nil
		default:
			one = c
		}
	}
	return one
}

// requirement is a part of the kernel that some rows need and that may be missing.
type requirement struct {
	match        string // rules that need it have this
	what, module string
	rule         string // one that needs it
}

func requirements() []requirement {
	return []requirement{
		{"-m recent ", "session affinity", "xt_recent", "-m recent --rcheck --seconds 1 --reap --name " + kubeProbe + " --rsource -j RETURN"},
		{"-m sctp ", "protocol SCTP", "xt_sctp", "-p sctp -m sctp --dport 1 -j RETURN"},
		{"-m statistic ", "several endpoints", "xt_statistic", "-m statistic --mode random --probability 0.5 -j RETURN"},
	}
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

// line is a line of a restore.
type line struct {
	text, table string
	change      *change // what it is for; nil: all of the table
	deletes     bool    // a rule that it cannot delete is no fault of its row
}

// tableOrder is the order in which tables are written.
var tableOrder = []string{mangle, filter, nat}

// script returns what makes changes. Within a table lines come in an order in
// which each is valid: chains are made or emptied, rules go, rules come, chains
// go. The constant rules of a chain that rows share keep their place.
func script(some []*change) []line {
	const declares, deletes, rules, constantsFirst, rowRules, constantsLast, removes = 0, 1, 2, 3, 4, 5, 6
	tables := map[string]*[removes + 1][]line{}
	fresh := map[chainRef]bool{} // chains that are made or emptied
	for _, c := range some {
		if c.ID.rule == "" && !c.ID.builtIn() && (!c.Had || c.Old.foreign) {
			fresh[c.ID.chainRef] = true
		}
	}
	for _, c := range some {
		p := c.ID.chainRef
		if tables[p.table] == nil {
			tables[p.table] = &[removes + 1][]line{}
		}
		add := func(step int, command string, of ...string) {
			for _, rule := range of {
				tables[p.table][step] = append(tables[p.table][step], line{command + " " + p.chain + " " + rule, p.table, c, step == deletes})
			}
		}
		declare := func() {
			tables[p.table][declares] = append(tables[p.table][declares], line{declaration(p), p.table, c, false})
		}
		backward := func() (out []string) {
			for _, r := range slices.Backward(c.New.rules) {
				out = append(out, r)
			}
			return out
		}
		switch {
		case c.ID.rule != "" && !c.Has:
			add(deletes, "-D", c.ID.rule)
		case c.ID.rule != "" && p.rowsFirst() && !fresh[p]:
			add(rowRules, "-I", c.ID.rule)
		case c.ID.rule != "":
			add(rowRules, "-A", c.ID.rule)
		case p.builtIn():
			add(deletes, "-D", c.Old.rules...)
			add(constantsLast, "-I", backward()...)
		case !c.Has && c.Old.used:
			if len(c.Old.rules) > 0 {
				declare() // it cannot go
			}
		case !c.Has:
			declare()
			tables[p.table][removes] = append(tables[p.table][removes], line{"-X " + p.chain, p.table, c, true})
		case !p.shared():
			declare()
			add(rules, "-A", c.New.rules...)
		default:
			if fresh[p] {
				declare()
			} else {
				add(deletes, "-D", c.Old.rules...)
			}
			switch {
			case p.rowsFirst():
				add(constantsLast, "-A", c.New.rules...)
			case fresh[p]:
				add(constantsFirst, "-A", c.New.rules...)
			default:
				add(constantsFirst, "-I", backward()...)
			}
		}
	}
	var out []line
	for _, name := range tableOrder {
		t := tables[name]
		if t == nil || len(slices.Concat(t[:]...)) == 0 {
			continue
		}
		slices.SortStableFunc(t[rowRules], func(a, b line) int { return cmp.Compare(a.text, b.text) })
		out = append(append(append(out, line{text: "*" + name, table: name}), slices.Concat(t[:]...)...), line{text: "COMMIT", table: name})
	}
	return out
}

func declaration(p chainRef) string { return ":" + p.chain + " - [0:0]" }

// text is what the programs read.
func text(lines []line) []byte {
	var b []byte
	for _, l := range lines {
		b = append(append(b, l.text...), '\n')
	}
	return b
}

// effects returns what changes do to each table that there are lines for.
func effects(some []*change, lines []line) []ipt.Change {
	of := map[string]*ipt.Change{}
	for _, l := range lines {
		if of[l.table] == nil {
			of[l.table] = &ipt.Change{Table: l.table}
		}
	}
	for _, c := range some {
		e := of[c.ID.table]
		if e == nil {
			continue
		}
		if c.Has {
			e.Rules += len(c.ID.all(c.New))
		}
		if c.Had {
			e.Rules -= len(c.ID.all(c.Old))
		}
		switch {
		case c.ID.rule != "" || c.ID.builtIn():
		case c.Has && !c.Had:
			e.Chains++
		case c.Had && !c.Has && !c.Old.used:
			e.Chains--
		}
	}
	var out []ipt.Change
	for _, name := range tableOrder {
		if of[name] != nil {
			out = append(out, *of[name])
		}
	}
	return out
}
