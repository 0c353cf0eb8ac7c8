package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// family is the tables of one family.
type family struct {
	proxy.Family
	programs ipt.Interface
	nodes    [2]*nodeMatches // of the nodes that were asked for last

	// By table, how many rules are ours and how many were written since the last report.
	owned, written map[string]int

	reported map[string]ruleCount         // by table, guarded by mu of the dataplane's counts
	packets  map[countedRule]*packetCount // guarded by reading of the dataplane's counts

	*stamp
	// Guarded by mu of the stamp.
	synced      bool // the tables are as uses say
	uses        uses // of our chains
	foreignSeen int  // how many foreign changes there were when the tables were known to be right
}

// stamp knows when others change tables that have one: those of one family with
// the legacy variant, of both with the other.
type stamp struct {
	mu      sync.Mutex // also held while we write
	last    ipt.Stamp
	foreign int // how often others were found to have changed something
}

// look notes whether another process has changed the tables since the last
// look, beside these changes of ours.
func (s *stamp) look(ctx context.Context, programs ipt.Interface, ours ...ipt.Change) error {
	now, err := programs.Stamp(ctx)
	if err != nil {
		return err
	}
	if !s.last.Became(now, ours...) {
		s.foreign++
	}
	s.last = now
	return nil
}

// begin is called before the tables are saved. Until they have been checked
// nobody looks whether they are right.
func (f *family) begin(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced, f.uses, f.owned, f.written = false, uses{}, map[string]int{}, map[string]int{}
	if err := f.look(ctx, f.programs); err != nil {
		return err
	}
	f.foreignSeen = f.foreign
	return nil
}

// changedByOthers reports whether another process has changed the tables since a
// Sync made them right.
func (f *family) changedByOthers() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced && f.foreignSeen != f.foreign
}

// restore makes changes and returns those that were made, and the line that was
// refused if one was. A change that another process makes before, or meanwhile,
// moves the stamp by more than ours do.
func (f *family) restore(ctx context.Context, some []*change, lines []line) (committed []*change, refused *line, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx, f.programs); err != nil {
		return nil, nil, err
	}
	err = f.programs.Restore(ctx, text(lines))
	var failed *ipt.RestoreError
	switch {
	case err == nil:
		committed = some
	case errors.Is(err, ipt.ErrLocked):
		return nil, nil, err
	case errors.As(err, &failed) && failed.Line >= 1 && failed.Line <= len(lines):
		refused = &lines[failed.Line-1]
		// Tables are committed one by one.
		lines = lines[:slices.IndexFunc(lines, func(l line) bool { return l.table == refused.table })]
		for _, c := range some {
			if slices.Index(tableOrder, c.ID.table) < slices.Index(tableOrder, refused.table) {
				committed = append(committed, c)
			}
		}
	default:
		f.synced = false
		return nil, nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	f.count(committed)
	if failed := f.look(ctx, f.programs, effects(committed, lines)...); failed != nil {
		f.synced = false
		return committed, nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, failed)
	}
	return committed, refused, err
}

// count notes changes that were made.
func (f *family) count(made []*change) {
	for _, c := range made {
		if c.Had {
			f.note(c.ID, c.Old, -1)
		}
		if c.Has {
			f.note(c.ID, c.New, 1)
			f.written[c.ID.table] += len(c.ID.all(c.New))
		}
	}
	for _, c := range made {
		if !c.Has && !c.Old.used && c.ID.rule == "" {
			delete(f.uses, c.ID.chainRef)
		}
	}
}

// note counts an object, n times.
func (f *family) note(x id, v value, n int) {
	rules := x.all(v)
	f.owned[x.table] += n * len(rules)
	f.uses.note(x.chainRef, rules, n)
}
