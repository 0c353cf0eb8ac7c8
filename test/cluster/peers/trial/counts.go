package trial

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Counts starts a peer and returns the CPU time that it takes for one update
// while the numbers of endpoints change at a rate, and how many updates it saw.
func (b *Bench) Counts(ctx context.Context, p Peer, rate int, window time.Duration) (each time.Duration, updates int, err error) {
	t := &trial{Bench: b, peer: p}
	if t.site, err = b.newSite(ctx); err != nil {
		return 0, 0, err
	}
	defer func() {
		if t.proxy != nil {
			t.proxy.Kill()
		}
		err = errors.Join(err, t.site.close(ctx))
	}()
	if err := t.start(); err != nil {
		return 0, 0, err
	}
	alive, cancel := t.alive(ctx, t.Limits.ColdStart)
	defer cancel()
	if targets := t.targets(); len(targets) > 0 {
		answers, err := t.site.client.Await(alive, targets)
		if err != nil || answers.Count < len(targets) {
			return 0, 0, errors.Join(fmt.Errorf("%d of %d Services answered", answers.Count, len(targets)), err)
		}
	}
	if err := t.settle(ctx, quiet); err != nil {
		return 0, 0, err
	}
	return t.scaling(ctx, rate, window)
}

// scaling changes numbers of endpoints for a while.
func (t *trial) scaling(ctx context.Context, rate int, window time.Duration) (each time.Duration, updates int, err error) {
	churn := t.Load.Scale(ctx, rate)
	defer func() { err = errors.Join(err, churn.Stop()) }()
	time.Sleep(warmUp)
	before, err := t.proxy.CPU()
	if err != nil {
		return 0, 0, err
	}
	seen := churn.Count()
	time.Sleep(window)
	after, err := t.proxy.CPU()
	if err != nil {
		return 0, 0, err
	}
	if updates = churn.Count() - seen; updates == 0 {
		return 0, 0, errors.New("nothing changed")
	}
	return (after - before) / time.Duration(updates), updates, nil
}
