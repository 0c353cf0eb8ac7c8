package iptables

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// pollInterval is how often Watch looks. A look is a question to the kernel
// that costs nothing to speak of while nobody has changed anything.
const pollInterval = 500 * time.Millisecond

// Watch looks several times a second whether somebody else has changed the
// tables, and if so whether the way into our chains is still there. It compares
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

// noticed returns what somebody else has taken from us; empty if nothing.
func (f *family) noticed(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx); err != nil || f.stamp == "" || !f.foreign {
		return "", err
	}
	now, err := f.programs.Stamp(ctx)
	if err != nil {
		return "", err
	}
	what, err := f.lost(ctx)
	if err == nil {
		f.stamp, f.foreign = now, false
	}
	return what, err
}

// lost returns what of ours is gone; empty if nothing is. Who flushes, flushes
// a chain that is built in or a whole table.
func (f *family) lost(ctx context.Context) (string, error) {
	canary, err := f.programs.Chain(ctx, mangle, kubeCanary)
	if err != nil {
		return "", err
	}
	if canary == nil {
		return fmt.Sprintf("chain %s of table %s is gone, %v", kubeCanary, mangle, f.Family), nil
	}
	want := map[place][]string{}
	for _, j := range jumps() {
		want[j.place] = append(want[j.place], j.rule)
	}
	for p, rules := range want {
		c, err := f.programs.Chain(ctx, p.table, p.chain)
		if err != nil {
			return "", err
		}
		for _, r := range rules {
			if c == nil || !slices.Contains(c.Rules, r) {
				return fmt.Sprintf("a rule of chain %s in table %s is gone, %v", p.chain, p.table, f.Family), nil
			}
		}
	}
	return "", nil
}
