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
	// saveRest is the minimum time between saves, as a multiple of the time that one
	// takes: other programs may write all the time, and a save reads everything.
	saveRest = 20

	// saveAttempts is how many saves during which we wrote are discarded before Watch
	// asks for a Sync instead.
	saveAttempts = 3
)

// checksums are checksums of the rules of our chains and of our jumps in built-in
// chains, updated with everything that we write. The chains of all rows have one
// checksum together.
type checksums struct {
	seed       maphash.Seed
	sums       map[chainRef]uint64
	unreadable map[string]bool // the tables that the programs could not list
}

// add adds n times those rules of a chain that are ours.
func (c checksums) add(table, chain string, rules []string, n int) {
	at, ours := countedAt(table, chain)
	for _, r := range rules {
		if ours || slices.Contains(jumps[at], r) {
			c.sums[at] += uint64(n) * maphash.Comparable(c.seed, [2]string{chain, r})
		}
	}
}

// differing returns the first chain whose rules differ from those in saved tables.
func (c checksums) differing(tables []ipt.Table) (at chainRef, found bool) {
	have := checksums{seed: c.seed, sums: map[chainRef]uint64{}}
	for _, t := range tables {
		for _, chain := range t.Chains {
			have.add(t.Name, chain.Name, chain.Rules, 1)
		}
	}
	maps.DeleteFunc(c.sums, func(_ chainRef, sum uint64) bool { return sum == 0 })
	for _, p := range slices.SortedFunc(maps.Keys(c.sums), compareChainRefs) {
		// A save does not have the rules of an unreadable table, and a Sync does not make
		// it readable, so that every save would be reported.
		if have.sums[p] != c.sums[p] && !c.unreadable[p.table] {
			return p, true
		}
		delete(have.sums, p)
	}
	for _, p := range slices.SortedFunc(maps.Keys(have.sums), compareChainRefs) {
		return p, true
	}
	return chainRef{}, false
}

// saveChecker saves tables and compares them with the checksums of what we wrote. It
// detects that a rule was replaced, or added to a chain of ours, which does not
// reduce the number of rules.
type saveChecker struct {
	busy     bool      // a save is running
	nextSave time.Time // when the next save may begin
	attempts int       // saves discarded in a row
	saved    chan *savedTables
}

// savedTables is the result of a save.
type savedTables struct {
	f      *family
	tables []ipt.Table
	writes int // family.writes when the save began
	took   time.Duration
	err    error
}

// begin returns a save to run, or nil if the tables of a family are not to be saved now.
// It marks the checker as busy. The save is of what was written so far: if the family
// writes or syncs before it ends, compare discards it.
func (r *saveChecker) begin(f *family) *savedTables {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced || !f.contentsUnverified || r.busy || time.Now().Before(r.nextSave) {
		return nil
	}
	r.busy = true
	return &savedTables{f: f, writes: f.writes}
}

// save runs a save. It runs concurrently with Watch.
func (r *saveChecker) save(ctx context.Context, s *savedTables) {
	began := time.Now()
	s.tables, s.err = s.f.programs.Save(ctx)
	s.took = time.Since(began)
	r.saved <- s
}

// compare describes a chain whose rules are not those that were written, or returns "".
// A save during which we wrote cannot be compared; after saveAttempts of them in a
// row, compare calls missed.
func (r *saveChecker) compare(s *savedTables, missed func()) (what string, err error) {
	r.busy, r.nextSave = false, time.Now().Add(saveRest*s.took)
	if s.err != nil {
		return "", s.err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.writes != s.writes {
		if r.attempts++; r.attempts == saveAttempts {
			s.f.contentsUnverified, r.attempts = false, 0
			missed()
		}
		return "", nil
	}
	s.f.contentsUnverified, r.attempts = false, 0
	if at, found := s.f.checksums.differing(s.tables); found {
		what = fmt.Sprintf("rules differ from those that were written: %s %s (%v)", at.table, at.chain, s.f.Family)
	}
	return what, nil
}
