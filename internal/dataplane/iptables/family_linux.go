package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// family is the tables of one family.
type family struct {
	proxy.Family
	programs ipt.Interface
	nodes    [2]*nodeMatches // of the nodes that were asked for last
	resetTCP bool

	// By table, how many rules are ours and how many were written since the last report.
	owned, written map[string]int

	reported atomic.Pointer[ruleCounts]  // nil: nothing yet
	packets  map[countedRule]packetCount // guarded by reading of the dataplane's counts

	*stamp
	// Guarded by mu of the stamp.
	synced      bool // the tables are as uses say
	uses        uses // of our chains
	contents    contents
	foreignSeen int  // how many foreign changes there were when the tables were known to be right
	unsure      bool // whether rules are as they were written: others changed something, and our chains have as many as before
	writes      int  // how often we began to write
	polled      int  // how often we had when Watch last looked
	summed      bool // the stamp has sums, and we have not written since

	legacy bool

	// rewrite has the chains where a rule could not be deleted by its text since the last
	// Sync that came to its end.
	rewrite map[chainRef]bool
}

// stamp knows when others change tables that have one: those of one family with
// the legacy variant, of both with the other.
type stamp struct {
	mu      sync.Mutex // also held while we write
	last    ipt.Stamp
	foreign int       // how often others were found to have changed something
	rested  time.Time // when the next look may be thorough
}

// look notes whether another process has changed the tables since the last
// look, beside these changes of ours.
func (f *family) look(ctx context.Context, thorough bool, ours ...ipt.Change) error {
	now, err := f.programs.Stamp(ctx, thorough)
	if err != nil {
		return err
	}
	if !f.last.LeadsTo(now, ours...) {
		f.foreign++
	}
	f.last = now
	return nil
}

// begin is called before the tables are saved. Until they have been checked
// nobody looks whether they are right.
func (f *family) begin(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	f.unsure, f.contents = false, contents{maphash.MakeSeed(), map[chainRef]uint64{}, map[string]bool{}}
	f.synced, f.uses, f.owned, f.written = false, uses{}, map[string]int{}, map[string]int{}
	err := f.look(ctx, false)
	f.foreignSeen = f.foreign
	return err
}

// restore makes changes and returns those that were made, and the line that was
// refused if one was. A change that another process makes before, or meanwhile,
// moves the stamp by more than ours do.
func (f *family) restore(ctx context.Context, some []*change, lines []line) (committed []*change, refused *line, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx, false); err != nil {
		return nil, nil, err
	}
	f.writes++
	f.summed = false
	err = f.programs.Restore(ctx, text(lines))
	failed, _ := errors.AsType[*ipt.RestoreError](err)
	switch {
	case err == nil:
		committed = some
	case errors.Is(err, ipt.ErrLocked) && lines[0].table == lines[len(lines)-1].table:
		return nil, nil, err // else tables before may be committed: the lock is taken for each
	case failed != nil && failed.Line >= 1 && failed.Line <= len(lines):
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
	if failed := f.look(ctx, false, f.count(committed, lines)...); failed != nil {
		f.synced = false
		return committed, nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, failed)
	}
	if refused != nil {
		refused.disturbed = f.synced && f.foreignSeen != f.foreign
	}
	return committed, refused, err
}

// count notes changes that were made by lines, and returns what they did to each
// table that was restored.
func (f *family) count(made []*change, lines []line) (did []ipt.Change) {
	before, chains := maps.Clone(f.owned), map[string]int{}
	for _, c := range made {
		if c.Had {
			f.note(c.ID, c.Old, -1)
		}
		if c.Has {
			f.note(c.ID, c.New, 1)
			f.written[c.ID.table] += len(c.New.rules)
		}
	}
	for _, c := range made {
		switch isChain := c.ID.rule == "" && !c.ID.builtIn(); {
		case isChain && !c.Had:
			chains[c.ID.table]++
		case isChain && !c.Has && !c.Old.used: // else it is emptied only
			chains[c.ID.table]--
			delete(f.uses, c.ID.chainRef)
		}
	}
	for _, l := range lines {
		if t := l.table; l.step == begins {
			did = append(did, ipt.Change{Table: t, Chains: chains[t], Rules: f.owned[t] - before[t]})
		}
	}
	return did
}

func (f *family) note(x id, v value, n int) {
	f.owned[x.table] += n * len(v.rules)
	f.contents.add(x.table, x.chain, v.rules, n)
	f.uses.add(x.table, x.chain, n*len(v.rules))
	for _, r := range v.rules {
		f.uses.add(x.table, ipt.Target(r), n)
	}
}

// uses is how many rules our chains have, and how many rules go to them, added
// up. The chains of all rows count as one, for there may be a hundred thousand.
type uses map[chainRef]int

// rowChains stands for the chains of all rows of a table.
const rowChains = "the chains of Services"

// countedAt returns where a chain counts, if it is ours.
func countedAt(table, chain string) (at chainRef, ours bool) {
	if isRowChain(chain) {
		return chainRef{table, rowChains}, table == nat
	}
	return chainRef{table, chain}, owns(table, chain)
}

// add counts uses of a chain, if it is ours.
func (u uses) add(table, chain string, n int) {
	if at, ours := countedAt(table, chain); ours {
		u[at] += n
	}
}

func (f *family) kernelUses(ctx context.Context) (uses, error) {
	tables, err := f.programs.Uses(ctx)
	u := uses{}
	for table, chains := range tables {
		for chain, n := range chains {
			u.add(table, chain, n)
		}
	}
	return u, err
}

const (
	// pollInterval is how often Watch looks. A look is a question to the kernel
	// that costs nothing to speak of while nobody has changed anything.
	pollInterval = 250 * time.Millisecond

	// thoroughRest is how many times as long as a thorough look takes none follows.
	thoroughRest = 100
)

// Watch looks several times a second whether another process has changed the
// tables, and if so whether our chains still hold what they should. It compares
// with what we wrote last, so that nothing is missed before it begins.
func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	ctx, stop := context.WithCancel(ctx)
	var save sync.WaitGroup
	defer save.Wait()
	defer stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	reader := saveReader{saved: make(chan savedTables, 1)}
	for {
		var what string
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-reader.saved:
			what, err = reader.compare(s, missed)
		case <-ticker.C:
			for i := 0; i < len(d.families) && what == "" && err == nil; i++ { // one is enough to repair both
				f := d.families[i]
				if what, err = f.lost(ctx); what == "" && err == nil && reader.mayBegin(f) {
					save.Go(func() { reader.save(ctx, f) })
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("look for our rules: %w", err)
		case what != "":
			changed(what)
		}
	}
}

// lost returns what another process has taken from us; empty if nothing.
func (f *family) lost(ctx context.Context) (what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return "", nil
	}
	if err := f.poll(ctx); err != nil || f.foreignSeen == f.foreign {
		return "", err
	}
	_, what, err = f.compare(ctx)
	f.unsure = what == ""
	return what, err
}

// poll is look when nothing is due. While we do not write it is thorough now and then,
// and after we have written there is nothing to compare with but what is saved.
func (f *family) poll(ctx context.Context) error {
	began := time.Now()
	thorough := f.legacy && f.writes == f.polled && !began.Before(f.rested)
	f.polled = f.writes
	if err := f.look(ctx, thorough); err != nil || !thorough {
		return err
	}
	f.unsure = f.unsure || !f.summed
	f.summed, f.rested = true, time.Now().Add(thoroughRest*time.Since(began))
	return nil
}

// check looks whether the tables hold all that they should, and from then on
// whatever takes away from what they hold is noticed. It reports whether no
// other process has changed them since begin.
func (f *family) check(ctx context.Context) (alone bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx, false); err != nil {
		return false, err
	}
	alone = f.foreignSeen == f.foreign
	have, missing, err := f.compare(ctx)
	if missing != "" {
		err = fmt.Errorf("check what was written: %s", missing)
	}
	// Others may use our chains too, which counts until they stop.
	f.uses, f.synced, f.unsure = have, err == nil, !alone
	clear(f.rewrite)
	return alone, err
}

// compare asks the kernel for the uses of our chains, and names those that have
// less than they should; empty if none has.
func (f *family) compare(ctx context.Context) (have uses, missing string, err error) {
	if have, err = f.kernelUses(ctx); err != nil {
		return nil, "", err
	}
	f.foreignSeen = f.foreign
	var gone, less []string
	for _, p := range slices.SortedFunc(maps.Keys(f.uses), compareChainRefs) {
		n, ok := have[p]
		switch {
		case !ok && p.chain != rowChains:
			gone = append(gone, p.table+" "+p.chain)
		case n < f.uses[p]:
			less = append(less, p.table+" "+p.chain)
		}
	}
	var all []string
	if len(gone) > 0 {
		all = append(all, fmt.Sprintf("chains are gone: %s", strings.Join(gone, ", ")))
	}
	if len(less) > 0 {
		all = append(all, fmt.Sprintf("rules are gone that were in, or led to: %s", strings.Join(less, ", ")))
	}
	if len(all) > 0 {
		missing = fmt.Sprintf("%s (%v)", strings.Join(all, "; "), f.Family)
	}
	return have, missing, nil
}
