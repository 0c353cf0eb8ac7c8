package iptables

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"sluice/internal/kernel/ipt"
)

const (
	// saveRest is how many times as long as a save takes no other follows: other
	// programs may write without end, and a save reads everything.
	saveRest = 20

	// saveAttempts is after how many saves that we wrote beside a Sync looks instead.
	saveAttempts = 3
)

// contents are sums of the rules of our chains, which follow from what is written;
// those of the chains of all rows are one.
type contents struct {
	seed       maphash.Seed
	sums       map[chainRef]uint64
	unreadable map[string]bool // tables that were written without looking
}

// add counts rules of a chain, if it is ours.
func (c contents) add(table, chain string, rules []string, n int) {
	at, ours := countedAt(table, chain)
	for _, r := range rules {
		if ours {
			c.sums[at] += uint64(n) * maphash.Comparable(c.seed, [2]string{chain, r})
		}
	}
}

// differs returns the first chain that has other rules in saved tables.
func (c contents) differs(tables []ipt.Table) (at chainRef, differs bool) {
	have := contents{seed: c.seed, sums: map[chainRef]uint64{}}
	for _, t := range tables {
		for _, chain := range t.Chains {
			have.add(t.Name, chain.Name, chain.Rules, 1)
		}
	}
	maps.DeleteFunc(c.sums, func(_ chainRef, sum uint64) bool { return sum == 0 })
	for _, p := range slices.SortedFunc(maps.Keys(c.sums), compareChainRefs) {
		if have.sums[p] != c.sums[p] && !c.unreadable[p.table] { // else once is enough
			return p, true
		}
		delete(have.sums, p)
	}
	for _, p := range slices.SortedFunc(maps.Keys(have.sums), compareChainRefs) {
		return p, true
	}
	return chainRef{}, false
}

// saveReader compares what is saved. A rule that is replaced, or added to a chain of
// ours, does not show by the number of rules.
type saveReader struct {
	busy     bool      // one is being read
	rested   time.Time // when the next may be
	attempts int       // that came to nothing
	saved    chan savedTables
}

// savedTables is the tables of a family.
type savedTables struct {
	f      *family
	tables []ipt.Table
	writes int // how often we had begun to write
	took   time.Duration
	err    error
}

// mayBegin reports whether the tables of a family are to be saved now, and has no
// other be meanwhile.
func (r *saveReader) mayBegin(f *family) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced || !f.unsure || r.busy || time.Now().Before(r.rested) {
		return false
	}
	r.busy = true
	return true
}

func (r *saveReader) save(ctx context.Context, f *family) {
	began, s := time.Now(), savedTables{f: f}
	f.mu.Lock()
	s.writes = f.writes
	f.mu.Unlock()
	s.tables, s.err = f.programs.Save(ctx)
	s.took = time.Since(began)
	r.saved <- s
}

// compare returns what is not as it was written; empty: nothing is. Where we write all
// the time it asks for a Sync, by missed.
func (r *saveReader) compare(s savedTables, missed func()) (what string, err error) {
	r.busy, r.rested = false, time.Now().Add(saveRest*s.took)
	if s.err != nil {
		return "", s.err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.writes != s.writes {
		if r.attempts++; r.attempts == saveAttempts {
			s.f.unsure, r.attempts = false, 0
			missed()
		}
		return "", nil
	}
	s.f.unsure, r.attempts = false, 0
	if at, differs := s.f.contents.differs(s.tables); differs {
		what = fmt.Sprintf("rules are not those that were written: %s %s (%v)", at.table, at.chain, s.f.Family)
	}
	return what, nil
}
