package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/runner"
)

const (
	// watchPause is the time after which a watch that failed is started again.
	watchPause = 10 * time.Second

	// watchBegun is how long a watch lasts that has begun: one that cannot begin ends at
	// once.
	watchBegun = time.Second

	// repairMin and repairMax bound the back-off between consecutive repairs. The
	// first repair is immediate; but if another process reacts to each repair with
	// another change, immediate repairs would never end.
	repairMin = 100 * time.Millisecond
	repairMax = 30 * time.Second

	// The back-off starts again after a time without foreign changes: repairQuietFactor
	// times the next wait, but at most repairQuietMax. A process that damages
	// our rules only every few seconds is not reacting to repairs, and delaying a
	// repair would leave Services broken for as long.
	repairQuietFactor = 20
	repairQuietMax    = time.Minute
)

// repairer requests full syncs that repair what other processes changed. It is safe
// for concurrent use.
type repairer struct {
	*Engine
	mu   sync.Mutex
	wait time.Duration // before the next repair
	last time.Time     // when a foreign change was last seen
}

// damage is what other processes changed and no full sync has repaired yet.
type damage struct {
	seen        string    // what was seen first
	since, last time.Time // when it was seen first and last
}

// recordDamage records that another process changed our rules.
func (e *Engine) recordDamage(seen string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.damage.since.IsZero() {
		e.damage = damage{seen: seen, since: now}
	}
	e.damage.last = now
}

// repair requests a repair: now, or after a back-off if foreign changes continue.
func (r *repairer) repair(ctx context.Context, seen string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if quiet := now.Sub(r.last); quiet > min(repairQuietMax, repairQuietFactor*r.wait) {
		r.wait = 0
	}
	r.last = now
	r.recordDamage(seen, now) // before the request: the sync may begin at once
	logger := klog.FromContext(ctx)
	switch {
	case !r.requestFullSync(now.Add(r.wait)):
		return // A repair is scheduled already.
	case r.wait == 0:
		logger.Info("Another process changed our rules, repairing them", "seen", seen)
	default:
		logger.Info("Another process keeps changing our rules, repairing them less often; check whether another proxy runs on this node",
			"seen", seen, "repairIn", r.wait)
	}
	r.observer.Repairing()
	r.wait = runner.Backoff(r.wait, repairMin, repairMax)
	r.Sync() // If the repair has to wait, the run schedules it.
}

// watch requests a repair whenever the kernel announces that another process changed
// our rules.
func (e *Engine) watch(ctx context.Context, w proxy.Watcher, r *repairer) {
	missed := func() {
		if e.requestFullSync(time.Now()) {
			e.Sync()
		}
	}
	for ctx.Err() == nil {
		begun := time.AfterFunc(watchBegun, func() { e.doubts.Clear(RulesUnwatched, "") })
		err := w.Watch(ctx, missed, func(seen string) { r.repair(ctx, seen) })
		begun.Stop()
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Watch of our rules ended and is retried, changes by other processes are not seen until then",
				"retryIn", watchPause)
			e.doubts.Set(Doubt{
				Kind: RulesUnwatched, Reason: fmt.Sprintf("the watch of our rules ended: %v", err),
				Next: "it is started again, and everything is compared", NextAt: time.Now().Add(watchPause),
			})
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

// afterFirstSync calls f after the first sync, unless ctx ends before. Until then
// there are no rules of ours to watch, and a watch would make the kernel send an event
// for each of the many elements that the first sync writes.
func (e *Engine) afterFirstSync(ctx context.Context, f func()) {
	select {
	case <-e.firstSync:
		f()
	case <-ctx.Done():
	}
}

const (
	// verifyInterval is how often rows are read back if the kernel does not announce
	// changes.
	verifyInterval = 250 * time.Millisecond

	// verifyTime is how long each time. It costs less than a hundredth of a CPU at
	// any number of rows. Damage to many rows is found at once, damage to one row of
	// ten thousand within half a minute.
	verifyTime = 2 * time.Millisecond
)

// readBack names what verify reads, in a doubt.
const readBack = "objects that the kernel does not announce"

// verify reads back rows in turn until ctx ends, and requests repairs.
func (e *Engine) verify(ctx context.Context, v proxy.Verifier, r *repairer) {
	tick := time.NewTicker(verifyInterval)
	defer tick.Stop()
	var rows []proxy.PortKey // still to be read in this round
	var failed string        // the last error that was logged
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var due bool
		if rows, due = e.toVerify(rows); !due {
			continue
		}
		var seen string
		err := e.access.inspect(ctx, func(ctx context.Context) (err error) {
			rows, seen, err = verifySome(ctx, v, rows)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && seen != "":
			r.repair(ctx, seen)
		case err == nil:
			failed = ""
			e.doubts.Clear(RulesUnwatched, readBack)
		case err != errInterrupted && !errors.Is(err, proxy.ErrNeedSync) && err.Error() != failed:
			failed = err.Error()
			klog.FromContext(ctx).Error(err, "Kernel state cannot be read back, changes by other processes may go unnoticed")
			e.doubts.Set(Doubt{Kind: RulesUnwatched, Object: readBack, Reason: fmt.Sprintf("the kernel cannot be read: %v", err), Next: "it is read again"})
		}
	}
}

// verifySome reads back what all rows share, and then rows for verifyTime. It returns
// the rows that it did not read, and the first difference that it saw; empty if none.
func verifySome(ctx context.Context, v proxy.Verifier, rows []proxy.PortKey) (rest []proxy.PortKey, seen string, err error) {
	began := time.Now()
	found, err := v.Verify(ctx, proxy.PortKey{})
	if err != nil || len(found) > 0 {
		return rows, describe(found), err
	}
	for i, key := range rows {
		if time.Since(began) > verifyTime || ctx.Err() != nil {
			return rows[i:], "", ctx.Err()
		}
		found, err := v.Verify(ctx, key)
		if err != nil || len(found) > 0 {
			return rows[i+1:], fmt.Sprintf("%v: %s", key, describe(found)), err
		}
	}
	return nil, "", nil
}

// describe returns the first of some differences, and how many more there are.
func describe(all []proxy.Difference) string {
	switch n := len(all); n {
	case 0:
		return ""
	case 1:
		return all[0].String()
	default:
		return fmt.Sprintf("%v (and %d more)", all[0], n-1)
	}
}

// toVerify returns the rows left to read back, or all rows if none is left. It reports
// false if a full sync is requested, for now or for later: that compares everything.
func (e *Engine) toVerify(left []proxy.PortKey) (rows []proxy.PortKey, due bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if due = e.fullDue.IsZero(); due && len(left) == 0 {
		left = slices.Collect(maps.Keys(e.resolver.State().Rows))
	}
	return left, due
}
