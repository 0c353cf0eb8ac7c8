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
	"sluice/internal/source"
)

var _ source.Handler = (*Engine)(nil)

// Engine receives events from a source and keeps the kernel in the wanted state.
type Engine struct {
	dataplane proxy.Dataplane
	observer  Observer
	doubts    *Doubts
	runner    *runner.BoundedFrequencyRunner
	firstSync chan struct{} // closed after the first successful sync
	access    dataplaneAccess

	// These belong to the goroutine of SyncLoop.
	started      bool        // the first sync does not wait for objects any more
	nodeDeadline time.Time   // when waiting for the Node ends; zero if the wait has not begun
	lastFull     time.Time   // when the last successful full sync began; zero if there was none
	nextRun      *time.Timer // requests a run when a retry, a full sync or the end of the wait for the Node is due
	log          objectLog

	mu         sync.Mutex
	resolver   *resolve.Resolver
	table      *table
	period     time.Duration                         // between full syncs
	synced     struct{ services, slices, node bool } // the source has delivered all objects of the kind
	fullDue    time.Time                             // the first sync at or after this time must be a full one; zero if none is requested
	firstEvent time.Time                             // when the oldest event arrived that no sync includes yet; zero if there is none
	last       SyncStatus
	failing    failure // of the last syncs; zero if the last one succeeded
	damage     damage  // that no full sync has repaired yet; zero if there is none
	created    time.Time
}

// New returns an engine that does nothing until SyncLoop is called.
func New(s Settings) *Engine {
	e := &Engine{
		dataplane: s.Dataplane,
		observer:  s.Observer,
		doubts:    cmp.Or(s.Doubts, new(Doubts)),
		period:    s.SyncPeriod,
		resolver:  s.Resolver,
		table:     newTable(s.Resolver.State()),
		fullDue:   time.Now(),
		firstSync: make(chan struct{}),
		access:    newDataplaneAccess(),
		log:       newObjectLog(),
		created:   time.Now(),
	}
	e.runner = runner.New("sync", e.run, runner.Settings{
		MinInterval: s.MinSyncPeriod,
		MaxInterval: s.SyncPeriod,
		RetryMin:    retryMin,
		RetryMax:    retryMax,
		Failed:      e.failed,
	})
	return e
}

// Sync requests a sync and returns at once.
func (e *Engine) Sync() {
	e.observer.Queued()
	e.runner.Run()
}

// Configure replaces the settings of the resolver and the sync periods while the
// engine runs. It ignores the node's name and the families, which cannot change.
func (e *Engine) Configure(s resolve.Settings, minSyncPeriod, syncPeriod time.Duration) {
	e.mu.Lock()
	e.resolver.Configure(s)
	e.period = syncPeriod
	e.mu.Unlock()
	e.runner.SetIntervals(minSyncPeriod, syncPeriod)
	e.Sync()
}

// Refused returns the status of the rows that the kernel refuses, sorted.
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

// SyncLoop runs until ctx ends, and then returns nil once the sync in progress has ended.
// It is called once.
func (e *Engine) SyncLoop(ctx context.Context) error {
	var background sync.WaitGroup
	var runErr error // why the dataplane's Run returned early
	ctx, stop := context.WithCancel(ctx)
	if r, ok := e.dataplane.(proxy.Runner); ok {
		background.Go(func() {
			if err := r.Run(ctx); ctx.Err() == nil {
				runErr = fmt.Errorf("run the dataplane: %w", cmp.Or(err, errors.New("it stopped without an error")))
				stop()
			}
		})
	}
	repairs := &repairer{Engine: e}
	if w, ok := e.dataplane.(proxy.Watcher); ok {
		background.Go(func() { e.afterFirstSync(ctx, func() { e.watch(ctx, w, repairs) }) })
	}
	if v, ok := e.dataplane.(proxy.Verifier); ok {
		background.Go(func() { e.afterFirstSync(ctx, func() { e.verify(ctx, v, repairs) }) })
	}
	e.nextRun = time.AfterFunc(nodeWait, e.runner.Run)
	e.nextRun.Stop() // scheduleNextRun and ready start it when there is something to wait for.
	defer e.nextRun.Stop()
	err := e.runner.Loop(ctx)
	e.access.lock() // It is never unlocked: no inspection may begin any more.
	close(e.access.closed)
	stop()
	background.Wait()
	return errors.Join(err, runErr)
}

// requestFullSync makes the first sync at or after a time a full one; syncs before
// it may write changes only. It reports false if a full sync is due by then anyway.
func (e *Engine) requestFullSync(at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.fullDue.IsZero() && !at.Before(e.fullDue) {
		return false
	}
	e.fullDue = at
	return true
}

// work is what one run has to do.
type work struct {
	start           time.Time
	state           *proxy.State   // the wanted state
	changed         *proxy.Changed // the parts of it that may not be in force
	step            *proxy.Delta   // the same parts, as the difference from what is in force
	full, first     bool
	held            map[proxy.PortKey]*proxy.ServicePort // rows that a full sync writes in these versions first
	kept            map[proxy.PortKey]bool               // refused rows that keep an earlier version although the sync is full
	found, resolved []resolve.Problem                    // since the last run
	problems        int                                  // how many there are in total
}

// run performs one sync. The runner calls it, and retries if it returns an error.
func (e *Engine) run(ctx context.Context) error {
	if !e.ready(ctx) {
		return nil
	}
	w := e.takeWork()
	e.log.problems(ctx, w.found, w.resolved)
	refused, err := e.write(ctx, w)
	r := Result{Full: w.full, Err: err, State: w.state, Found: w.found, Problems: w.problems}
	if err != nil {
		e.recordFailure(err)
	} else {
		if w.full {
			e.lastFull = w.start
		}
		if w.first {
			close(e.firstSync)
		}
		done, refusals := e.recordSuccess(w, refused)
		r.Changed, r.Refusals = done, len(refusals) > 0
		report(ctx, w, done)
		if c, ok := e.dataplane.(proxy.Comparer); ok && w.full && !w.first {
			reportRewritten(ctx, w, c.Rewritten())
		}
		e.log.refusals(ctx, w, refusals)
	}
	e.scheduleNextRun(w)
	e.observer.Done(ctx, r)
	return err
}

func (e *Engine) recordFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last.Err = err
	if e.failing.since.IsZero() {
		e.failing.since = time.Now()
	}
}

// failed is called after a sync that failed, with the time until the retry.
func (e *Engine) failed(ctx context.Context, err error, retryIn time.Duration) {
	e.mu.Lock()
	e.failing.retry = time.Now().Add(retryIn)
	e.mu.Unlock()
	reportFailure(ctx, err, retryIn)
}

// recordSuccess records that the work is in force, except for the refused rows. It
// returns what changed in the kernel, and the rows whose refusal changed.
func (e *Engine) recordSuccess(w *work, refused proxy.Refused) (*proxy.Delta, []RowStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	done, refusals := e.table.recordSync(w, refused, now)
	e.last = SyncStatus{First: true, Ended: now, Took: now.Sub(w.start)}
	e.failing = failure{}
	if w.full && !e.damage.last.After(w.start) {
		e.damage = damage{}
	}
	return done, refusals
}

// takeWork resolves the pending events and returns what has to be written.
func (e *Engine) takeWork() *work {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &work{start: time.Now(), first: e.lastFull.IsZero()}
	pendingSince := w.start
	if !e.firstEvent.IsZero() {
		pendingSince, e.firstEvent = e.firstEvent, time.Time{}
	}
	e.table.markChanged(e.resolver.Update(), pendingSince)
	w.state = e.resolver.State()
	w.found, w.resolved = e.resolver.TakeProblems()
	w.problems = e.resolver.ProblemCount()
	due := !e.fullDue.IsZero() && !w.start.Before(e.fullDue)
	w.full = due || e.period > 0 && w.start.Sub(e.lastFull) >= e.period
	if w.full {
		e.fullDue = time.Time{} // A foreign change that is seen from here on needs another full sync.
	}
	w.changed, w.step = e.table.due(w.full, w.start)
	if w.full {
		w.held = e.table.heldRows(e.last.Err != nil)
	}
	e.observer.Began(w.step)
	return w
}

// write passes the work to the dataplane and returns the rows that the kernel
// refused. After an error, everything that was dirty stays dirty.
func (e *Engine) write(ctx context.Context, w *work) (refused proxy.Refused, err error) {
	e.access.lock()
	defer e.access.unlock()
	switch {
	case w.full:
		if refused, err = e.sync(ctx, w); err != nil {
			err = fmt.Errorf("sync %d rows: %w", len(w.state.Rows), err)
		}
	case !w.changed.Empty():
		if refused, err = e.dataplane.Apply(ctx, w.state, w.changed); err != nil {
			err = fmt.Errorf("apply %d changed rows: %w", len(w.changed.Rows), err)
		}
	}
	if err != nil && (w.full || errors.Is(err, proxy.ErrNeedSync)) {
		e.requestFullSync(w.start)
	}
	return refused, err
}

// scheduleNextRun requests a run for the next retry of a refused row, or for the
// next full sync. What was due in this run and failed is retried by the runner.
func (e *Engine) scheduleNextRun(w *work) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var next time.Time
	atLatest := func(t time.Time) {
		if t.After(w.start) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	atLatest(e.fullDue)
	atLatest(e.table.leftovers.NextTry)
	for _, r := range e.table.dirty {
		atLatest(r.NextTry)
	}
	if next.IsZero() {
		e.nextRun.Stop()
	} else {
		e.nextRun.Reset(time.Until(next))
	}
}

// ready reports whether enough objects are known to program the kernel. Writing the
// rows of only some objects would be worse than leaving what an earlier process wrote.
func (e *Engine) ready(ctx context.Context) bool {
	if e.started {
		return true
	}
	e.mu.Lock()
	synced := e.synced
	e.mu.Unlock()
	if !synced.services || !synced.slices {
		return false
	}
	if !synced.node {
		if e.nodeDeadline.IsZero() {
			e.nodeDeadline = time.Now().Add(nodeWait)
		}
		if wait := time.Until(e.nodeDeadline); wait > 0 {
			e.nextRun.Reset(wait)
			return false
		}
		klog.FromContext(ctx).Info("Node not received, syncing without its zone and addresses", "waited", nodeWait)
	}
	e.started = true
	return true
}
