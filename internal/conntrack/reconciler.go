package conntrack

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

const (
	// watchTime is how long a frontend is watched after a change. A packet that
	// the old rules have translated may still be under way (in a queue to a
	// program, for one) and become a flow after we have looked, so there is a
	// second look when the time is over.
	watchTime = 2 * time.Second

	// hearTime is how long after the kernel we hear of a step at the latest, but
	// for very large ones, which are written in pieces.
	hearTime = 50 * time.Millisecond

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
	Passed     func(Pass)                   // told of every pass; nil: nobody is
}

// Pass is what was done for one family.
type Pass struct {
	Family  proxy.Family
	Elapsed time.Duration // working, not waiting
	Deleted int           // flows
}

// Reconciler ends stale flows. It is an observer of the engine.
type Reconciler struct {
	settings Settings
	wake     chan struct{}

	// These belong to the goroutine of Run.
	watch  watch
	unseen bool          // something is watched that the pass under way may not have looked at
	waited time.Duration // how much of the pass was waiting
	retry  time.Duration // the wait after the next failure

	mu    sync.Mutex
	steps []step // that Run has not seen
}

// New returns a Reconciler that does nothing until Run is called.
func New(s Settings) *Reconciler {
	return &Reconciler{settings: s, wake: make(chan struct{}, 1), watch: newWatch(), retry: retryMin}
}

// LocalAddrs returns the addresses of the calling thread's network namespace.
func LocalAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, nil
}

// Applied notes a step for Run, and returns at once.
func (r *Reconciler) Applied(_ context.Context, s *proxy.State, d *proxy.Delta) {
	st := stepOf(s, d)
	if st.idle() {
		return
	}
	r.mu.Lock()
	r.steps = append(r.steps, st)
	r.mu.Unlock()
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
			if r.take() {
				alarm.Reset(time.Until(rested))
			}
			continue
		case <-alarm.C:
		}
		r.take()
		r.unseen = false
		rest := r.pass(ctx)
		rested = time.Now().Add(rest)
		if due, ok := r.watch.due(); r.unseen {
			alarm.Reset(rest)
		} else if ok {
			alarm.Reset(max(rest, time.Until(due)))
		}
	}
}

// take learns what was applied meanwhile, and reports whether a look is due.
func (r *Reconciler) take() bool {
	r.mu.Lock()
	steps := r.steps
	r.steps = nil
	r.mu.Unlock()
	news := false
	for _, s := range steps {
		if r.watch.learn(s, time.Now()) {
			news = true
		}
	}
	return news
}

// pass looks at the flows of all watched frontends once, and returns how long
// to rest.
func (r *Reconciler) pass(ctx context.Context) time.Duration {
	start := time.Now()
	r.waited = 0
	err := r.look(ctx)
	elapsed := time.Since(start) - r.waited
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		rest := max(r.retry, restFactor*elapsed)
		klog.FromContext(ctx).Error(err, "Stale flows may remain, will look again", "retryIn", rest)
		r.retry = min(2*r.retry, retryMax)
		return rest
	default:
		r.retry = retryMin
		r.watch.looked(start)
		return restFactor * elapsed
	}
}
