package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// pollInterval is how often Watch looks. A look is a question to the kernel
// that costs nothing to speak of while nobody has changed anything.
const pollInterval = 250 * time.Millisecond

// Watch looks several times a second whether another process has changed the
// tables, and if so whether our chains still hold what they should. It compares
// with what we wrote last, so that nothing is missed before it begins.
func (d *Dataplane) Watch(ctx context.Context, _ func(), changed func(what string)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, f := range d.families {
			what, err := f.noticed(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("look for our rules: %w", err)
			}
			if what != "" {
				changed(what)
				break // one is enough to repair both
			}
		}
	}
}

// noticed returns what another process has taken from us; empty if nothing.
func (f *family) noticed(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return "", nil
	}
	if err := f.look(ctx); err != nil || f.looked == f.others {
		return "", err
	}
	have, err := f.count(ctx)
	if err != nil {
		return "", err
	}
	f.looked = f.others
	return f.lost(have, f.uses), nil
}

// check looks whether the tables hold all that they should, and from then on
// whatever takes away from what they hold is noticed. It reports whether no
// other process has changed them since begin.
func (f *family) check(ctx context.Context, want uses) (alone bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx); err != nil {
		return false, err
	}
	have, err := f.count(ctx)
	if err != nil {
		return false, err
	}
	if what := f.lost(have, want); what != "" {
		return false, fmt.Errorf("check what was written: %s", what)
	}
	alone = f.looked == f.others
	// Others may use our chains too, which counts until they stop.
	f.uses, f.looked, f.synced = have, f.others, true
	return alone, nil
}

// lost names the first of our chains that has less than it should; empty if
// none has. Rules are counted and not compared: other releases of the programs
// may print them in other words.
func (f *family) lost(have, want uses) string {
	for _, p := range slices.SortedFunc(maps.Keys(want), compareChainRefs) {
		n, ok := have[p]
		switch {
		case !ok && p.chain != rowChains:
			return fmt.Sprintf("chain %s of table %s is gone, %v", p.chain, p.table, f.Family)
		case n < want[p]:
			return fmt.Sprintf("a rule of %s in table %s is gone, or one that leads there, %v", p.chain, p.table, f.Family)
		}
	}
	return ""
}
