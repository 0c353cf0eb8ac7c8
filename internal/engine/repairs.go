package engine

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	// repairMin and repairMax bound the waits between repairs that follow each
	// other. The first comes at once; but with a second writer that never rests
	// each repair would only bring about the next.
	repairMin = 100 * time.Millisecond
	repairMax = 30 * time.Second

	// repairQuiet is how long our rules must be left alone before a repair is a
	// first one again.
	repairQuiet = time.Minute
)

// repairs asks for full syncs when others change our rules. It is used by one
// goroutine.
type repairs struct {
	engine *Engine
	wait   time.Duration // before the next repair
	last   time.Time     // when a change was last seen
	timer  *time.Timer   // of a repair that waits
}

func newRepairs(e *Engine) *repairs {
	r := &repairs{engine: e, timer: time.AfterFunc(repairMax, e.Sync)}
	r.timer.Stop() // It is set when there is something to repair.
	return r
}

// stop gives up the repair that waits, if any.
func (r *repairs) stop() { r.timer.Stop() }

// seen takes a change that somebody else made.
func (r *repairs) seen(ctx context.Context, what string) {
	now := time.Now()
	if now.Sub(r.last) > repairQuiet {
		r.wait = 0
	}
	r.last = now
	if !r.engine.fullAt(now.Add(r.wait)) {
		return // a repair is on its way
	}
	logger := klog.FromContext(ctx)
	if r.wait == 0 {
		logger.Info("Somebody else changed our rules, repairing them", "seen", what)
		r.wait = repairMin
		r.engine.Sync()
		return
	}
	logger.Info("Somebody else keeps changing our rules, repairing them less often; does another proxy write them?",
		"seen", what, "repairIn", r.wait)
	r.timer.Reset(r.wait)
	r.wait = min(2*r.wait, repairMax)
}
