package engine

import (
	"context"
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
	// first one again.
	repairQuiet = time.Minute
)

// watch asks for a full sync whenever another process has changed our rules.
func (e *Engine) watch(ctx context.Context, w proxy.Watcher) {
	// Before the first sync nothing is ours yet, and the kernel would prepare an
	// event for each of the many elements that it writes.
	select {
	case <-e.firstSync:
	case <-ctx.Done():
		return
	}
	logger := klog.FromContext(ctx)
	missed := func() {
		if e.needFull(time.Now()) {
			e.Sync()
		}
	}
	var repairIn time.Duration // the wait before the next repair
	var last time.Time         // when a change was last seen
	changed := func(what string) {
		now := time.Now()
		if now.Sub(last) > repairQuiet {
			repairIn = 0
		}
		last = now
		switch {
		case !e.needFull(now.Add(repairIn)):
			return // A repair is on its way.
		case repairIn == 0:
			logger.Info("Another process changed our rules, repairing them", "seen", what)
		default:
			logger.Info("Another process keeps changing our rules, repairing them less often; does another proxy write them?",
				"seen", what, "repairIn", repairIn)
		}
		e.observer.Repairing()
		repairIn = runner.Backoff(repairIn, repairMin, repairMax)
		e.Sync() // If the repair has to wait, the run sets the alarm.
	}
	for ctx.Err() == nil {
		if err := w.Watch(ctx, missed, changed); ctx.Err() == nil {
			logger.Error(err, "Watching our rules ended, will watch again", "retryIn", watchPause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}
