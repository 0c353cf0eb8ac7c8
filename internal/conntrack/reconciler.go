package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
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

	// restFactor is how many times what it cost a pass is followed by rest:
	// the kernel walks its whole table for a dump, however few flows match. It is no
	// longer than maxRest: a pass that ends a million flows does not cost that again,
	// and who comes next must not wait for its sake.
	restFactor = 4
	maxRest    = 5 * time.Second

	// endedAtOnce bounds the flows that are held to be ended: there may be a million
	// of one endpoint, and the process has less memory than the kernel. They take
	// about 25 MB. For more, the kernel is asked again.
	endedAtOnce = 1 << 17
)

type Settings struct {
	Flows      ct.Interface                   // the Reconciler's alone from now on
	LocalAddrs func() ([]netip.Prefix, error) // the node's own addresses, asked for at every pass

	// Passed is told how long every pass took for a family, and how many flows it
	// deleted; nil: nobody is.
	Passed func(f proxy.Family, took time.Duration, deleted int)

	// ThreadTime is how long the calling thread has had a processor, which is what
	// a pass costs; nil: by the clock. On a busy node a pass of a millisecond may
	// take half a second, and stale flows would wait for two more.
	ThreadTime func() time.Duration
}

// Reconciler ends stale flows. It is an observer of the engine.
type Reconciler struct {
	settings Settings
	wake     chan struct{}

	// These belong to the goroutine of Run.
	retry   time.Duration // the last wait after a failure
	retryAt time.Time     // when it is over; zero: nothing failed
	atOnce  int           // how many flows are ended before the kernel is asked again

	mu    sync.Mutex // held for moments only, since the engine waits for it
	watch watch
}

// New returns a Reconciler that does nothing until Run is called.
func New(s Settings) *Reconciler {
	if s.ThreadTime == nil {
		begin := time.Now()
		s.ThreadTime = func() time.Duration { return time.Since(begin) }
	}
	return &Reconciler{settings: s, wake: make(chan struct{}, 1), atOnce: endedAtOnce, watch: newWatch()}
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
	runtime.LockOSThread() // whose time is measured
	defer runtime.UnlockOSThread()
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
		var next time.Time
		if rested, next = r.pass(ctx); !next.IsZero() {
			alarm.Reset(max(time.Until(rested), time.Until(next)))
		}
	}
}

// pass looks at the flows of all watched frontends once. It returns until when to
// rest, whatever happens, and when to look again if nothing does; zero: never.
func (r *Reconciler) pass(ctx context.Context) (rested, next time.Time) {
	start, spent := time.Now(), r.settings.ThreadTime()
	err := r.reconcile(ctx)
	rested = time.Now().Add(min(maxRest, restFactor*(r.settings.ThreadTime()-spent)))
	r.mu.Lock()
	if err == nil {
		r.watch.checked(start)
	}
	next = r.watch.due(start)
	forgotten := r.watch.forgotten
	r.watch.forgotten = 0
	r.mu.Unlock()
	if forgotten > 0 {
		klog.FromContext(ctx).Info("Too many addresses of Services went before flows could be checked, stale flows to them may remain",
			"addresses", forgotten)
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.retry, r.retryAt = 0, time.Time{}
	case !start.Before(r.retryAt): // else a change asked for it, which is no reason to wait longer or to say it again
		r.retry = runner.Backoff(r.retry, retryMin, retryMax)
		r.retryAt = time.Now().Add(r.retry)
		klog.FromContext(ctx).Error(err, "Stale flows may remain, will try again", "retryIn", r.retry)
	}
	if !r.retryAt.IsZero() && (next.IsZero() || r.retryAt.Before(next)) {
		next = r.retryAt
	}
	return rested, next
}

// reconcile ends the stale flows of all watched frontends.
func (r *Reconciler) reconcile(ctx context.Context) error {
	local, err := r.settings.LocalAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	j := judge{watch: &r.watch, local: proxy.Outermost(local), serving: map[*proxy.ServicePort]map[netip.AddrPort]bool{}}
	r.mu.Lock()
	filters := r.watch.filters()
	r.mu.Unlock()
	var errs []error
	for _, family := range proxy.Families {
		start, checked, deleted := time.Now(), false, 0
		for _, protocol := range []proxy.Protocol{proxy.UDP, proxy.SCTP} {
			if by := (ct.Filter{IPv6: family == proxy.IPv6, Protocol: uint8(protocol)}); filters[by] {
				n, err := r.end(ctx, by, &j)
				checked, deleted, errs = true, deleted+n, append(errs, err)
			}
		}
		elapsed := time.Since(start)
		if checked && r.settings.Passed != nil {
			r.settings.Passed(family, elapsed, deleted)
		}
		if deleted > 0 {
			klog.FromContext(ctx).V(2).Info("Ended stale flows", "family", family, "flows", deleted, "elapsed", elapsed)
		}
	}
	return errors.Join(errs...)
}

// end deletes the stale flows among those of a filter, and returns how many.
func (r *Reconciler) end(ctx context.Context, by ct.Filter, j *judge) (deleted int, err error) {
	stale := func(f *ct.Flow) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return j.stale(f)
	}
	by.Most = r.atOnce
	for more := true; more && err == nil; {
		var flows []ct.Flow
		flows, err = r.settings.Flows.Dump(ctx, by, stale)
		n, failed := r.delete(ctx, flows, stale)
		deleted, err = deleted+n, errors.Join(err, failed)
		more = len(flows) == r.atOnce // though they may have become right meanwhile
	}
	return deleted, err
}

// delete deletes flows that are still stale, and returns how many.
//
// The rows may have changed since a flow was seen, so it is judged again. The
// rules by which it began were announced before they were written, and so they
// are known by now.
func (r *Reconciler) delete(ctx context.Context, flows []ct.Flow, stale func(*ct.Flow) bool) (deleted int, err error) {
	logger := klog.FromContext(ctx).V(4)
	var failures []error
	for i := range flows {
		f := &flows[i]
		if !stale(f) {
			continue
		}
		switch err := r.settings.Flows.Delete(ctx, f); {
		case err == nil:
			deleted++
			r.mu.Lock()
			r.watch.ended(f)
			r.mu.Unlock()
			logger.Info("Ended stale flow", "flow", f)
		case !errors.Is(err, ct.ErrNotFound): // Else it ended by itself.
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		err = fmt.Errorf("%d of %d flows: %w", len(failures), len(flows), failures[0])
	}
	return deleted, err
}

// judge decides on flows. It is made for one pass.
type judge struct {
	*watch
	local   []netip.Prefix
	serving map[*proxy.ServicePort]map[netip.AddrPort]bool // of the rows that came up
}

// stale reports whether a flow is ours and must end.
func (j *judge) stale(f *ct.Flow) bool {
	switch exact, byPort := frontendsOf(f); {
	case f.Zone != 0:
		return false
	case j.answersEnded(f):
		return true
	case !j.watches(exact) && !(j.watches(byPort) && j.sentHere(f) && j.tookNodePorts(f.Orig.Dst.Addr())):
		return false
	default:
		return j.wrong(f, nil) && (j.writing == nil || j.wrong(f, j.writing))
	}
}

// frontendsOf returns what a flow's client sends to: an address, or a NodePort.
func frontendsOf(f *ct.Flow) (exact, byPort frontend) {
	dst, protocol := f.Orig.Dst, proxy.Protocol(f.Protocol)
	unspecified := proxy.FamilyOf(dst.Addr()).Unspecified()
	return frontend{dst, protocol}, frontend{netip.AddrPortFrom(unspecified, dst.Port()), protocol}
}

// wrong reports whether a flow must end by the rules that are in force, or by
// those that a write makes of them.
func (j *judge) wrong(f *ct.Flow, by *writing) bool {
	node := j.node
	if by != nil {
		node = by.node
	}
	exact, byPort := frontendsOf(f)
	o := j.owner(exact, by)
	if o.row == nil && node.TakesNodePorts(f.Orig.Dst.Addr()) && j.sentHere(f) {
		o = j.owner(byPort, by)
	}
	switch {
	case o.row == nil:
		return translated(f)
	case j.serves(o.row, f.Reply.Src):
		return false
	default:
		return translated(f) || forwards(o, node)
	}
}

// translated reports whether another than the one a client sends to answers.
func translated(f *ct.Flow) bool { return f.Reply.Src != f.Orig.Dst }

// serves reports whether an address is an endpoint of the row that may have flows.
func (j *judge) serves(sp *proxy.ServicePort, a netip.AddrPort) bool {
	if j.serving[sp] == nil {
		j.serving[sp] = sp.Serving()
	}
	return j.serving[sp][a]
}

// forwards reports whether a frontend sends anybody to an endpoint.
func forwards(o owner, node *proxy.Node) bool {
	policy := o.row.Policy(o.kind, node)
	return slices.ContainsFunc(policy[:], func(r proxy.Route) bool { return len(r.To) > 0 })
}

// sentHere reports whether a flow's client sends to an address of this node, or to one
// that is away, as a virtual address that another node has for a while: a flow to an
// endpoint that has just left its NodePort has come by it.
func (j *judge) sentHere(f *ct.Flow) bool {
	_, byPort := frontendsOf(f)
	return proxy.WithinOutermost(j.local, f.Orig.Dst.Addr()) || translated(f) && j.left[departure{byPort, f.Reply.Src}]
}

// tookNodePorts reports whether an address of the node takes NodePorts, or did.
func (j *judge) tookNodePorts(a netip.Addr) bool {
	was := *j.node
	was.NodePorts = j.former
	return j.node.TakesNodePorts(a) || was.TakesNodePorts(a)
}
