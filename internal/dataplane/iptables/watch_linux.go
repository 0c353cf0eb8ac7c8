package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/internal/kernel/ipt"
)

// uses is how many rules our chains have, and how many rules go to them, added
// up. The chains of all rows count as one, for there may be a hundred thousand.
type uses map[chainRef]int

// rowChains stands for the chains of all rows of a table.
const rowChains = "the chains of Services"

// add counts uses of a chain.
func (u uses) add(table, chain string, n int) {
	if isRowChain(chain) {
		chain = rowChains
	}
	u[chainRef{table, chain}] += n
}

// note counts rules of a chain, n times. A built-in chain is others' too.
func (u uses) note(p chainRef, rules []string, n int) {
	if !p.builtIn() {
		u.add(p.table, p.chain, n*len(rules))
	}
	for _, r := range rules {
		if to := ipt.Target(r); owns(p.table, to) {
			u.add(p.table, to, n)
		}
	}
}

// kernelUses asks the kernel for the uses of our chains.
func (f *family) kernelUses(ctx context.Context) (uses, error) {
	tables, err := f.programs.Uses(ctx)
	if err != nil {
		return nil, err
	}
	u := uses{}
	for table, chains := range tables {
		for chain, n := range chains {
			if owns(table, chain) {
				u.add(table, chain, n)
			}
		}
	}
	return u, nil
}

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
			what, err := f.lost(ctx)
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

// lost returns what another process has taken from us; empty if nothing.
func (f *family) lost(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return "", nil
	}
	if err := f.look(ctx, f.programs); err != nil || f.foreignSeen == f.foreign {
		return "", err
	}
	have, err := f.kernelUses(ctx)
	if err != nil {
		return "", err
	}
	f.foreignSeen = f.foreign
	return f.missing(have), nil
}

// check looks whether the tables hold all that they should, and from then on
// whatever takes away from what they hold is noticed. It reports whether no
// other process has changed them since begin.
func (f *family) check(ctx context.Context) (alone bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx, f.programs); err != nil {
		return false, err
	}
	have, err := f.kernelUses(ctx)
	if err != nil {
		return false, err
	}
	if what := f.missing(have); what != "" {
		return false, fmt.Errorf("check what was written: %s", what)
	}
	alone = f.foreignSeen == f.foreign
	// Others may use our chains too, which counts until they stop.
	f.uses, f.foreignSeen, f.synced = have, f.foreign, true
	return alone, nil
}

// missing names the first of our chains that has less than it should; empty if
// none has. Rules are counted and not compared: other releases of the programs
// may print them in other words.
func (f *family) missing(have uses) string {
	for _, p := range slices.SortedFunc(maps.Keys(f.uses), compareChainRefs) {
		n, ok := have[p]
		switch {
		case !ok && p.chain != rowChains:
			return fmt.Sprintf("chain %s of table %s is gone, %v", p.chain, p.table, f.Family)
		case n < f.uses[p]:
			return fmt.Sprintf("a rule of %s in table %s is gone, or one that leads there, %v", p.chain, p.table, f.Family)
		}
	}
	return ""
}
