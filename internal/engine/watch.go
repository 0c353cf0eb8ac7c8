package engine

import (
	"context"
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
