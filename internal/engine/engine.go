package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/runner"
)

// Engine is the Provider.
type Engine struct {
	dataplane proxy.Dataplane
	observers []Observer
	pulses    []Pulse
	register  Register
	runner    *runner.BoundedFrequencyRunner
	firstSync chan struct{} // closed when the kernel has been made right once

	// These belong to the goroutine of SyncLoop.
	begun    bool        // nothing is waited for any more
	nodeBy   time.Time   // when waiting for the Node ends; zero: not begun
	lastFull time.Time   // when the last full sync began that went through
	alarm    *time.Timer // asks for the next run that nobody else asks for

	mu       sync.Mutex
	resolver *resolve.Resolver
	table    *table
	period   time.Duration                         // from one full sync to the next
	heard    struct{ services, slices, node bool } // all that a source starts with has come
	full     bool                                  // only a full sync is right
	repair   time.Time                             // when a full sync is due, though steps can be taken; zero: none is
	status   Status
}

var _ Provider = (*Engine)(nil)

// New returns an engine that does nothing until SyncLoop is called.
func New(s Settings) *Engine {
	e := &Engine{
		dataplane: s.Dataplane,
		observers: s.Observers,
		pulses:    s.Pulses,
		register:  s.Register,
		period:    s.SyncPeriod,
		resolver:  s.Resolver,
		table:     newTable(s.Resolver.State()),
		full:      true,
		firstSync: make(chan struct{}),
	}
	e.runner = runner.New("sync", e.run, runner.Settings{
		MinInterval: s.MinSyncPeriod,
		MaxInterval: s.SyncPeriod,
		RetryMin:    retryMin,
		RetryMax:    retryMax,
		Failed:      reportFailure,
	})
	return e
}

// Sync asks for a sync soon.
func (e *Engine) Sync() {
	for _, p := range e.pulses {
		p.Queued()
	}
	e.runner.Run()
}

// Configure changes the rules by which rows are made, and how often syncs are
// made, while the engine runs. The node's name and the families cannot change.
func (e *Engine) Configure(rules resolve.Settings, minSyncPeriod, syncPeriod time.Duration) {
	e.mu.Lock()
	e.resolver.Configure(rules)
	e.period = syncPeriod
	e.mu.Unlock()
	e.runner.SetIntervals(minSyncPeriod, syncPeriod)
	e.Sync()
}

// Status returns how the engine stands now.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// SyncLoop keeps the kernel right until ctx ends.
func (e *Engine) SyncLoop(ctx context.Context) error {
	var beside sync.WaitGroup
	var ended error // why the dataplane's own work ended early
	ctx, stop := context.WithCancel(ctx)
	if r, ok := e.dataplane.(proxy.Runner); ok {
		beside.Go(func() {
			if err := r.Run(ctx); ctx.Err() == nil {
				ended = fmt.Errorf("the dataplane stopped working: %w", cmp.Or(err, errors.New("no reason given")))
				stop()
			}
		})
	}
	if w, ok := e.dataplane.(proxy.Watcher); ok {
		beside.Go(func() { e.watch(ctx, w) })
	}
	e.alarm = time.AfterFunc(nodeWait, e.runner.Run)
	e.alarm.Stop() // It is set when there is something to wait for.
	defer e.alarm.Stop()
	err := e.runner.Loop(ctx)
	stop()
	beside.Wait()
	return errors.Join(err, ended)
}

// watch asks for a full sync whenever somebody else has changed our rules.
func (e *Engine) watch(ctx context.Context, w proxy.Watcher) {
	logger := klog.FromContext(ctx)
	// Before the first sync nothing is ours yet, and the kernel would prepare an
	// event for each of the many elements that it writes.
	select {
	case <-e.firstSync:
	case <-ctx.Done():
		return
	}
	repairs := newRepairs(e)
	defer repairs.stop()
	for {
		err := w.Watch(ctx, e.verify, func(what string) { repairs.seen(ctx, what) })
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Watching our rules ended, will watch again", "retryIn", watchPause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchPause):
		}
	}
}

// verify makes a full sync now: nobody knows what others have done.
func (e *Engine) verify() {
	if e.fullAt(time.Now()) {
		e.Sync()
	}
}

// needFull makes the next sync a full one.
func (e *Engine) needFull() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full = true
}

// fullAt makes the first sync from a time on a full one; those before it may
// take steps. It reports false, and does nothing, if a full sync is due already.
func (e *Engine) fullAt(t time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.full || !e.repair.IsZero() {
		return false
	}
	e.repair = t
	return true
}

// run is one run of the runner: it makes the kernel right, or says why not.
func (e *Engine) run(ctx context.Context) error {
	if !e.ready(ctx) {
		return nil
	}
	w := e.take()
	err := e.work(ctx, w)
	for _, p := range e.pulses {
		p.Done(w.full, err)
	}
	return err
}

func (e *Engine) work(ctx context.Context, w *work) error {
	reportProblems(ctx, w.found, w.mended)
	defer e.setAlarm(w)
	if !w.full && w.changed.Empty() {
		e.succeeded()
		return nil
	}
	e.announce(ctx, w.step)
	refused, err := e.write(ctx, w)
	if err != nil {
		e.mu.Lock()
		e.status.LastErr = err
		e.mu.Unlock()
		return err
	}
	done := e.settle(ctx, w, refused)
	first := e.succeeded()
	if !w.full && done.Empty() {
		e.announce(ctx, nil)
		return nil
	}
	report(ctx, w, done, first)
	for _, o := range e.observers {
		o.Applied(ctx, w.state, done)
	}
	return nil
}

// announce tells what is about to be written; nil: nothing of the last was.
func (e *Engine) announce(ctx context.Context, d *proxy.Delta) {
	for _, o := range e.observers {
		if wo, ok := o.(WriteObserver); ok {
			wo.Applying(ctx, d)
		}
	}
}

// work is what one run has to do.
type work struct {
	start         time.Time
	state         *proxy.State   // all that is wanted
	changed       *proxy.Changed // what of it may not be in force
	step          *proxy.Delta   // the same, from what is in force
	full          bool
	found, mended []resolve.Problem
}

// take consumes what the handlers have gathered.
func (e *Engine) take() *work {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &work{start: time.Now()}
	e.table.changed(e.resolver.Update(), w.start)
	w.state = e.resolver.State()
	w.found, w.mended = e.resolver.TakeProblems()
	repair := !e.repair.IsZero() && !w.start.Before(e.repair)
	w.full = e.full || repair || e.period > 0 && w.start.Sub(e.lastFull) >= e.period
	if w.full {
		// A change that is seen from here on needs another full sync.
		e.full, e.repair = false, time.Time{}
	}
	w.changed = e.table.due(w.full, w.start)
	w.step = e.table.step(w.changed)
	for _, p := range e.pulses {
		p.Began()
	}
	return w
}

// write takes the work to the dataplane and returns the rows that the kernel
// refused. After an error all that changed is as dirty as before.
func (e *Engine) write(ctx context.Context, w *work) (proxy.Refused, error) {
	if w.full {
		refused, err := e.dataplane.Sync(ctx, w.state)
		if err != nil {
			e.needFull()
			return nil, fmt.Errorf("sync %d rows: %w", len(w.state.Rows), err)
		}
		return refused, nil
	}
	changed := *w.changed
	changed.HealthChecks = nil
	for _, c := range w.step.HealthChecks {
		if c.Moves() {
			changed.HealthChecks = append(changed.HealthChecks, c.Key())
		}
	}
	if changed.Empty() {
		return nil, nil
	}
	refused, err := e.dataplane.Apply(ctx, w.state, &changed)
	if err != nil {
		if errors.Is(err, proxy.ErrNeedSync) {
			e.needFull()
		}
		return nil, fmt.Errorf("apply %d changed rows: %w", len(changed.Rows), err)
	}
	return refused, nil
}

// settle notes that the work is done, but for the refused rows, and returns
// what changed in the kernel.
func (e *Engine) settle(ctx context.Context, w *work, refused proxy.Refused) *proxy.Delta {
	if w.full {
		e.lastFull = w.start
	}
	e.mu.Lock()
	done, news := e.table.settle(w, refused, time.Now())
	e.mu.Unlock()
	reportRefusals(ctx, news)
	e.tellRefusals(ctx, news)
	return done
}

// succeeded notes that the kernel is right now.
func (e *Engine) succeeded() (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first = !e.status.Synced; first {
		close(e.firstSync)
	}
	e.status = Status{Synced: true, LastSync: time.Now()}
	for range e.table.refused() {
		e.status.Refused++
	}
	return first
}

// setAlarm asks for a run when the next refused row is to be tried again. Those
// that were tried now and did not come through are tried with the rest.
func (e *Engine) setAlarm(w *work) {
	if due, ok := e.table.nextTry(w.start); ok {
		e.wakeAt(due)
	} else {
		e.alarm.Stop()
	}
}

// wakeAt asks for a run at a time, and at none that was asked for before.
func (e *Engine) wakeAt(t time.Time) { e.alarm.Reset(time.Until(t)) }

// ready reports whether enough is known to program the kernel. Half the
// objects would be worse than what a former run has left there.
func (e *Engine) ready(ctx context.Context) bool {
	if e.begun {
		return true
	}
	e.mu.Lock()
	heard := e.heard
	e.mu.Unlock()
	if !heard.services || !heard.slices {
		return false
	}
	if !heard.node {
		if e.nodeBy.IsZero() {
			e.nodeBy = time.Now().Add(nodeWait)
		}
		if time.Now().Before(e.nodeBy) {
			e.wakeAt(e.nodeBy)
			return false
		}
		klog.FromContext(ctx).Info("Node objects did not come, going on without: zone and node addresses are unknown",
			"waited", nodeWait)
	}
	e.begun = true
	return true
}
