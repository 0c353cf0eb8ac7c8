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
	legacy   bool
	resetTCP bool

	recentMatches [2]*nodeMatches // cache of matches, for the old and the new node

	// By table: how many rules are ours, and how many we wrote since publishCounts.
	owned, written map[string]int

	published atomic.Pointer[ruleCounts]  // nil before the first Sync
	packets   map[countedRule]packetCount // guarded by counts.reading of the dataplane

	*changeDetector
	// Guarded by changeDetector.mu.
	synced             bool // uses and checksums describe what we wrote; false during a Sync
	uses               uses // of our chains, by our rules
	checksums          checksums
	foreignSeen        int  // the value of foreign when uses were last compared
	contentsUnverified bool // another process changed something, but our chains have as many rules as before
	writes             int  // how often we began to write
	writesAtPoll       int  // writes at the last poll
	haveSums           bool // the last stamp has checksums, and we have not written since

	// rewrite has the chains with a rule that could not be deleted by its text, since
	// the last successful Sync.
	rewrite map[chainRef]bool
}

// changeDetector detects that another process changes tables, by a stamp. With the
// legacy variant each family has its own; with the nft variant both families share
// one, because nf_tables has one generation number.
type changeDetector struct {
	mu           sync.Mutex // also held while we write
	last         ipt.Stamp
	foreign      int       // how often another process was found to have changed something
	nextThorough time.Time // when the next stamp may be thorough
}

// readStamp increments foreign if the tables have changed since the last call by
// more than the given changes, which are ours.
func (f *family) readStamp(ctx context.Context, thorough bool, ours ...ipt.Change) error {
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

// beginSync is called before the tables are saved. Watch ignores the family until
// verify has succeeded.
func (f *family) beginSync(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	f.contentsUnverified, f.checksums = false, checksums{maphash.MakeSeed(), map[chainRef]uint64{}, map[string]bool{}}
	f.synced, f.uses, f.owned, f.written = false, uses{}, map[string]int{}, map[string]int{}
	err := f.readStamp(ctx, false)
	f.foreignSeen = f.foreign
	return err
}

// restore runs one restore. It returns the changes that were committed and, if a
// line was refused, that line. A change by another process, before the restore or
// during it, shows because the stamp advances by more than our changes account for.
func (f *family) restore(ctx context.Context, some []*change, lines []line) (committed []*change, refused *line, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readStamp(ctx, false); err != nil {
		return nil, nil, err
	}
	f.writes++
	f.haveSums = false
	err = f.programs.Restore(ctx, text(lines))
	failed, _ := errors.AsType[*ipt.RestoreError](err)
	switch {
	case err == nil:
		committed = some
	case errors.Is(err, ipt.ErrLocked) && lines[0].table == lines[len(lines)-1].table:
		return nil, nil, err // with several tables, some may be committed: the programs take the lock for each table
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
	if failed := f.readStamp(ctx, false, f.record(committed, lines)...); failed != nil {
		f.synced = false
		return committed, nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, failed)
	}
	if refused != nil {
		refused.afterForeignChange = f.synced && f.foreignSeen != f.foreign
	}
	return committed, refused, err
}

// record updates the counts for changes that were committed, and returns by how much
// they change each table that the lines restore.
func (f *family) record(made []*change, lines []line) (sizes []ipt.Change) {
	before, chains := maps.Clone(f.owned), map[string]int{}
	for _, c := range made {
		if c.Had {
			f.recordObject(c.ID, c.Old, -1)
		}
		if c.Has {
			f.recordObject(c.ID, c.New, 1)
			f.written[c.ID.table] += len(c.New.rules)
		}
	}
	for _, c := range made {
		switch isChain := c.ID.rule == "" && !c.ID.builtIn(); {
		case isChain && !c.Had:
			chains[c.ID.table]++
		case isChain && !c.Has:
			delete(f.uses, c.ID.chainRef)
			if !c.Old.used { // a used chain is only flushed
				chains[c.ID.table]--
			}
		}
	}
	for _, l := range lines {
		if t := l.table; l.step == stepTable {
			sizes = append(sizes, ipt.Change{Table: t, Chains: chains[t], Rules: f.owned[t] - before[t]})
		}
	}
	return sizes
}

// recordObject adds an object to the counts, or with n of -1 subtracts it.
func (f *family) recordObject(x id, v value, n int) {
	f.owned[x.table] += n * len(v.rules)
	f.checksums.add(x.table, x.chain, v.rules, n)
	f.uses.add(x.table, x.chain, n*len(v.rules))
	for _, r := range v.rules {
		f.uses.add(x.table, ipt.Target(r), n)
	}
}

// uses is the number of rules in each of our chains plus the number of rules that
// jump to it, like [ipt.Uses]. The chains of all rows are counted together, because
// there may be a hundred thousand of them. The kernel also counts jumps of other
// programs, which come and go as those like; whether one of them hides that a rule of
// ours is gone shows when contents are verified.
type uses map[chainRef]int

// rowChains stands for the chains of all rows of a table. Watch shows it to users.
const rowChains = "the chains of Services"

// countedAt returns the key of uses and checksums for a chain, and whether the chain
// is ours.
func countedAt(table, chain string) (at chainRef, ours bool) {
	if isRowChain(chain) {
		return chainRef{table, rowChains}, table == nat
	}
	return chainRef{table, chain}, owns(table, chain)
}

// add adds n uses of a chain, if it is ours.
func (u uses) add(table, chain string, n int) {
	if at, ours := countedAt(table, chain); ours {
		u[at] += n
	}
}

// kernelUses returns the uses of our chains that the kernel counts.
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
	// pollInterval is how often Watch polls. A poll is one request to the kernel,
	// whose cost is negligible while nothing has changed.
	pollInterval = 250 * time.Millisecond

	// thoroughRest is the minimum time between thorough stamps, as a multiple of the
	// time that one takes.
	thoroughRest = 100
)

// Watch polls several times a second whether another process has changed the tables
// and, if so, whether our chains still have their rules. It compares with what we
// wrote last, so that it also finds changes made before it was called.
func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	ctx, stop := context.WithCancel(ctx)
	var save sync.WaitGroup
	defer save.Wait()
	defer stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	checker := saveChecker{saved: make(chan *savedTables, 1)}
	for {
		var what string
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-checker.saved:
			what, err = checker.compare(s, missed)
		case <-ticker.C:
			for _, f := range d.families {
				if what, err = f.findLost(ctx); what != "" || err != nil {
					break // a Sync repairs both families
				}
				if s := checker.begin(f); s != nil {
					save.Go(func() { checker.save(ctx, s) })
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("watch iptables rules: %w", err)
		case what != "":
			changed(what)
		}
	}
}

// findLost describes the chains and rules of ours that another process has removed.
// It returns "" if there are none.
func (f *family) findLost(ctx context.Context) (what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return "", nil
	}
	if err := f.poll(ctx); err != nil || f.foreignSeen == f.foreign {
		return "", err
	}
	_, what, err = f.compareUses(ctx)
	f.contentsUnverified = what == ""
	return what, err
}

// poll reads the stamp. With the legacy variant the stamp is thorough now and then,
// unless we have written since the last poll. If there are no earlier checksums to
// compare those with, because we have written since, the tables must be saved to
// verify the rules.
func (f *family) poll(ctx context.Context) error {
	began := time.Now()
	thorough := f.legacy && f.writes == f.writesAtPoll && !began.Before(f.nextThorough)
	f.writesAtPoll = f.writes
	if err := f.readStamp(ctx, thorough); err != nil || !thorough {
		return err
	}
	f.contentsUnverified = f.contentsUnverified || !f.haveSums
	f.haveSums, f.nextThorough = true, time.Now().Add(thoroughRest*time.Since(began))
	return nil
}

// verify ends a Sync: it returns an error if our chains have fewer rules than were
// written. From then on Watch detects what other processes remove. It reports
// whether no other process has changed the tables since beginSync.
func (f *family) verify(ctx context.Context) (alone bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readStamp(ctx, false); err != nil {
		return false, err
	}
	alone = f.foreignSeen == f.foreign
	have, missing, err := f.compareUses(ctx)
	if missing != "" {
		err = fmt.Errorf("verify the rules that were written: %s", missing)
	}
	for p, n := range have {
		if f.checksums.unreadable[p.table] { // It may have rules of ours that were not listed.
			f.uses[p] = n
		}
	}
	f.synced, f.contentsUnverified = err == nil, !alone
	clear(f.rewrite)
	return alone, err
}

// compareUses reads the uses of our chains from the kernel, and describes the chains
// that have fewer than they should. It returns "" if there are none.
func (f *family) compareUses(ctx context.Context) (have uses, missing string, err error) {
	if have, err = f.kernelUses(ctx); err != nil {
		return nil, "", err
	}
	f.foreignSeen = f.foreign
	var gone, fewer []string
	for _, p := range slices.SortedFunc(maps.Keys(f.uses), compareChainRefs) {
		n, ok := have[p]
		switch {
		case !ok && p.chain != rowChains:
			gone = append(gone, p.table+" "+p.chain)
		case n < f.uses[p]:
			fewer = append(fewer, p.table+" "+p.chain)
		}
	}
	var all []string
	if len(gone) > 0 {
		all = append(all, "chains are missing: "+strings.Join(gone, ", "))
	}
	if len(fewer) > 0 {
		all = append(all, "rules in these chains, or jumps to them, are missing: "+strings.Join(fewer, ", "))
	}
	if len(all) > 0 {
		missing = fmt.Sprintf("%s (%v)", strings.Join(all, "; "), f.Family)
	}
	return have, missing, nil
}
