package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	observer  Observer
	runner    *runner.BoundedFrequencyRunner
	firstSync chan struct{} // closed when the kernel has been made right once
	turns     turns

	// These belong to the goroutine of SyncLoop.
	begun    bool        // nothing is waited for any more
	nodeBy   time.Time   // when waiting for the Node ends; zero: not begun
	lastFull time.Time   // when the last full sync began that went through; zero: none has
	alarm    *time.Timer // asks for the next run that nobody else asks for
	log      objectLog

	mu       sync.Mutex
	resolver *resolve.Resolver
	table    *table
	period   time.Duration                         // from one full sync to the next
	heard    struct{ services, slices, node bool } // all that a source starts with has come
	fullFrom time.Time                             // from when on only a full sync is right; zero: none is due
	eventAt  time.Time                             // when the first event came that no sync has begun with; zero: none has
	last     SyncStatus
}

// New returns an engine that does nothing until SyncLoop is called.
func New(s Settings) *Engine {
	e := &Engine{
		dataplane: s.Dataplane,
		observer:  s.Observer,
		period:    s.SyncPeriod,
		resolver:  s.Resolver,
		table:     newTable(s.Resolver.State()),
		fullFrom:  time.Now(),
		firstSync: make(chan struct{}),
		turns:     newTurns(),
		log:       newObjectLog(),
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

func (e *Engine) Sync() {
	e.observer.Queued()
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

// Refused returns how the rows stand that the kernel refuses, in order.
func (e *Engine) Refused() []RowStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []RowStatus
	for _, r := range e.table.dirty {
		if r.Refused != "" {
			all = append(all, *r)
		}
	}
	slices.SortFunc(all, compareRows)
	return all
}

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
	repairs := &repairer{Engine: e}
	if w, ok := e.dataplane.(proxy.Watcher); ok {
		beside.Go(func() { e.afterFirstSync(ctx, func() { e.watch(ctx, w, repairs) }) })
	}
	if v, ok := e.dataplane.(proxy.Verifier); ok {
		beside.Go(func() { e.afterFirstSync(ctx, func() { e.verify(ctx, v, repairs) }) })
	}
	e.alarm = time.AfterFunc(nodeWait, e.runner.Run)
	e.alarm.Stop() // It is set when there is something to wait for.
	defer e.alarm.Stop()
	err := e.runner.Loop(ctx)
	e.turns.take() // for good
	close(e.turns.ended)
	stop()
	beside.Wait()
	return errors.Join(err, ended)
}

// needFull makes the first sync from a time on a full one; those before it may
// write what changed. It reports false if one is due by then already.
func (e *Engine) needFull(from time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.fullFrom.IsZero() && !from.Before(e.fullFrom) {
		return false
	}
	e.fullFrom = from
	return true
}

// work is what one run has to do.
type work struct {
	start         time.Time
	state         *proxy.State   // all that is wanted
	changed       *proxy.Changed // what of it may not be in force
	step          *proxy.Delta   // the same, from what is in force
	full, first   bool
	found, mended []resolve.Problem
	problems      int // that there are
}

// run is one run of the runner: it makes the kernel right, or says why not.
func (e *Engine) run(ctx context.Context) error {
	if !e.ready(ctx) {
		return nil
	}
	w := e.take()
	e.log.problems(ctx, w.found, w.mended)
	refused, err := e.write(ctx, w)
	r := Result{Full: w.full, Err: err, State: w.state, Found: w.found, Problems: w.problems}
	if err != nil {
		e.failed(err)
	} else {
		if w.full {
			e.lastFull = w.start
		}
		if w.first {
			close(e.firstSync)
		}
		done, refusals := e.settle(w, refused)
		r.Changed, r.Refusals = done, len(refusals) > 0
		report(ctx, w, done)
		if c, ok := e.dataplane.(proxy.Comparer); ok && w.full && !w.first {
			reportRewritten(ctx, w, c.Rewritten())
		}
		e.log.refusals(ctx, w, refusals)
	}
	e.setAlarm(w)
	e.observer.Done(ctx, r)
	return err
}

func (e *Engine) failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last.Err = err
}

// settle notes that the work was done, but for the refused rows, and returns
// what that comes to.
func (e *Engine) settle(w *work, refused proxy.Refused) (*proxy.Delta, []RowStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	done, refusals := e.table.settle(w, refused, now)
	e.last = SyncStatus{First: true, Ended: now, Took: now.Sub(w.start)}
	return done, refusals
}

// take consumes what the handlers have gathered.
func (e *Engine) take() *work {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &work{start: time.Now(), first: e.lastFull.IsZero()}
	heard := w.start
	if !e.eventAt.IsZero() {
		heard, e.eventAt = e.eventAt, time.Time{}
	}
	e.table.changed(e.resolver.Update(), heard)
	w.state = e.resolver.State()
	w.found, w.mended = e.resolver.TakeProblems()
	w.problems = e.resolver.ProblemCount()
	due := !e.fullFrom.IsZero() && !w.start.Before(e.fullFrom)
	w.full = due || e.period > 0 && w.start.Sub(e.lastFull) >= e.period
	if w.full {
		e.fullFrom = time.Time{} // A change that is seen from here on needs another full sync.
	}
	w.changed, w.step = e.table.due(w.full, w.start)
	e.observer.Began(w.step)
	return w
}

// write takes the work to the dataplane and returns the rows that the kernel
// refused. After an error all that changed is as dirty as before.
func (e *Engine) write(ctx context.Context, w *work) (refused proxy.Refused, err error) {
	e.turns.take()
	defer e.turns.give()
	switch {
	case w.full:
		if refused, err = e.dataplane.Sync(ctx, w.state); err != nil {
			err = fmt.Errorf("sync %d rows: %w", len(w.state.Rows), err)
		}
	case !w.changed.Empty():
		if refused, err = e.dataplane.Apply(ctx, w.state, w.changed); err != nil {
			err = fmt.Errorf("apply %d changed rows: %w", len(w.changed.Rows), err)
		}
	}
	if err != nil && (w.full || errors.Is(err, proxy.ErrNeedSync)) {
		e.needFull(w.start)
	}
	return refused, err
}

// setAlarm asks for a run when the next refused row is to be tried again, or a
// full sync is due. Rows that were tried now are tried again with the rest.
func (e *Engine) setAlarm(w *work) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var next time.Time
	sooner := func(t time.Time) {
		if t.After(w.start) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	sooner(e.fullFrom)
	for _, r := range e.table.dirty {
		sooner(r.NextTry)
	}
	if next.IsZero() {
		e.alarm.Stop()
	} else {
		e.alarm.Reset(time.Until(next))
	}
}

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
		if wait := time.Until(e.nodeBy); wait > 0 {
			e.alarm.Reset(wait)
			return false
		}
		klog.FromContext(ctx).Info("Node objects did not come, going on without: zone and node addresses are unknown",
			"waited", nodeWait)
	}
	e.begun = true
	return true
}
