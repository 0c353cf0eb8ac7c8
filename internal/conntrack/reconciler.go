package conntrack

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
	"sluice/internal/runner"
)

const (
	// watchTime is how long a frontend is watched after a change. A packet that
	// the old rules have translated may still be under way (in a queue to a
	// program, for one) and become a flow after we have checked, so there is a
	// second check when the time is over.
	watchTime = 2 * time.Second

	// retryMin and retryMax bound the waits after a pass that failed.
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second

	// restFactor is how many times its own length a pass is followed by rest:
	// the kernel walks its whole table for a dump, however few flows match.
	restFactor = 4
)

// Settings are what a Reconciler is made of.
type Settings struct {
	Flows      ct.Interface                 // the Reconciler's alone from now on
	LocalAddrs func() ([]netip.Addr, error) // the node's own addresses, asked for at every pass

	// Passed is told how long every pass took for a family, and how many flows it
	// deleted; nil: nobody is.
	Passed func(f proxy.Family, took time.Duration, deleted int)
}

// Reconciler ends stale flows. It is an observer of the engine.
type Reconciler struct {
	settings Settings
	wake     chan struct{}

	retry time.Duration // the wait after the next failure; it belongs to the goroutine of Run

	mu    sync.Mutex // held for moments only, since the engine waits for it
	watch watch
}

// New returns a Reconciler that does nothing until Run is called.
func New(s Settings) *Reconciler {
	return &Reconciler{settings: s, wake: make(chan struct{}, 1), watch: newWatch()}
}

// Applying notes a step before it is written. A write takes its time, family by
// family, and until it is known to have ended well the kernel may do either:
// what the rows were, or what they become.
func (r *Reconciler) Applying(d *proxy.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch.expect(d)
}

// Applied notes that a step was written, after which the node is as given, and
// leaves the flows to Run.
func (r *Reconciler) Applied(node *proxy.Node, d *proxy.Delta, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch.learn(node, d, full, time.Now()); !r.watch.more {
		return
	}
	r.watch.more = false
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run ends stale flows until ctx ends, and then returns nil. It is called once.
func (r *Reconciler) Run(ctx context.Context) error {
	alarm := time.NewTimer(0)
	alarm.Stop()
	defer alarm.Stop()
	var rested time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			alarm.Reset(time.Until(rested))
			continue
		case <-alarm.C:
		}
		select {
		case <-r.wake: // The pass that begins looks at that too.
		default:
		}
		rest := r.pass(ctx)
		rested = time.Now().Add(rest)
		r.mu.Lock()
		due, ok := r.watch.due()
		r.mu.Unlock()
		if ok {
			alarm.Reset(max(rest, time.Until(due)))
		}
	}
}

// pass looks at the flows of all watched frontends once, and returns how long
// to rest.
func (r *Reconciler) pass(ctx context.Context) time.Duration {
	start := time.Now()
	err := r.reconcile(ctx)
	elapsed := time.Since(start)
	r.mu.Lock()
	if err == nil {
		r.watch.checked(start)
	}
	forgotten := r.watch.forgotten
	r.watch.forgotten = 0
	r.mu.Unlock()
	if forgotten > 0 {
		klog.FromContext(ctx).Info("Too many addresses of Services went while flows could not be read, stale flows to them may remain",
			"addresses", forgotten)
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		r.retry = runner.Backoff(r.retry, retryMin, retryMax)
		rest := max(r.retry, restFactor*elapsed)
		klog.FromContext(ctx).Error(err, "Stale flows may remain, will try again", "retryIn", rest)
		return rest
	default:
		r.retry = 0
		return restFactor * elapsed
	}
}
