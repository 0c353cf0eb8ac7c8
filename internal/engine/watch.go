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
	// watchPause is how long a broken watch for foreign changes rests.
	watchPause = 10 * time.Second

	// repairMin and repairMax bound the waits between repairs that follow each
	// other. The first comes at once; but with a second writer that never rests
	// each repair would only bring about the next.
	repairMin = 100 * time.Millisecond
	repairMax = 30 * time.Second

	// repairQuiet is how long our rules must be left alone before a repair is a
	// first one again: so many times as long as the next one would wait, and no
	// longer than that. Who damages them every few seconds does not fight with us,
	// and a repair that waits leaves Services broken for as long.
	repairRest  = 20
	repairQuiet = time.Minute
)

// repairer asks for full syncs that repair what other processes changed. Several
// goroutines may tell it.
type repairer struct {
	*Engine
	mu   sync.Mutex
	wait time.Duration // before the next repair
	last time.Time     // when a change was last seen
}

// changed asks for a repair: at once, or later if changes follow each other fast.
func (r *repairer) changed(ctx context.Context, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if quiet := now.Sub(r.last); quiet > min(repairQuiet, repairRest*r.wait) {
		r.wait = 0
	}
	r.last = now
	logger := klog.FromContext(ctx)
	switch {
	case !r.needFull(now.Add(r.wait)):
		return // A repair is on its way.
	case r.wait == 0:
		logger.Info("Another process changed our rules, repairing them", "seen", what)
	default:
		logger.Info("Another process keeps changing our rules, repairing them less often; does another proxy write them?",
			"seen", what, "repairIn", r.wait)
	}
	r.observer.Repairing()
	r.wait = runner.Backoff(r.wait, repairMin, repairMax)
	r.Sync() // If the repair has to wait, the run sets the alarm.
}

// watch asks for a full sync whenever the kernel announces that another process has
// changed our rules.
func (e *Engine) watch(ctx context.Context, w proxy.Watcher, r *repairer) {
	missed := func() {
		if e.needFull(time.Now()) {
			e.Sync()
		}
	}
	for ctx.Err() == nil {
		if err := w.Watch(ctx, missed, func(what string) { r.changed(ctx, what) }); ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Watching our rules ended, will watch again", "retryIn", watchPause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

// afterFirstSync calls f unless ctx ends first. Before the first sync nothing is ours
// yet, and the kernel would prepare an event for each of the many elements that it
// writes.
func (e *Engine) afterFirstSync(ctx context.Context, f func()) {
	select {
	case <-e.firstSync:
		f()
	case <-ctx.Done():
	}
}

const (
	// verifyInterval is how often some of what the kernel has is read back where it
	// does not announce changes.
	verifyInterval = 250 * time.Millisecond

	// verifyTime is for how long each time: it costs less than a hundredth of a CPU
	// at any number of rows. Much that is damaged shows at once, a single row of
	// ten thousand within half a minute.
	verifyTime = 2 * time.Millisecond
)

// verify reads back rows in turn, until ctx ends.
func (e *Engine) verify(ctx context.Context, v proxy.Verifier, r *repairer) {
	tick := time.NewTicker(verifyInterval)
	defer tick.Stop()
	var rows []proxy.PortKey // still to be read in this round
	var failed string        // why it could not be done
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
		var what string
		err := e.turns.inspect(ctx, func(ctx context.Context) (err error) {
			rows, what, err = verifySome(ctx, v, rows)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && what != "":
			r.changed(ctx, what)
		case err == nil:
			failed = ""
		case err != errGaveWay && !errors.Is(err, proxy.ErrNeedSync) && err.Error() != failed:
			failed = err.Error()
			klog.FromContext(ctx).Error(err, "What the kernel has cannot be read back, so changes by other processes may go unseen")
		}
	}
}

// verifySome reads back what all rows stand on and some rows, and returns the others
// and what it found first; empty: nothing.
func verifySome(ctx context.Context, v proxy.Verifier, rows []proxy.PortKey) (rest []proxy.PortKey, what string, err error) {
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

// describe tells the first of some differences, and how many more there are.
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

// toVerify returns what is to be read back, all rows if none is left. It is not due
// when a full sync was asked for, now or for later: that compares everything.
func (e *Engine) toVerify(left []proxy.PortKey) (rows []proxy.PortKey, due bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if due = e.fullFrom.IsZero(); due && len(left) == 0 {
		left = slices.Collect(maps.Keys(e.resolver.State().Rows))
	}
	return left, due
}
