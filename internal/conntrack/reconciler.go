package conntrack

import (
	"cmp"
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
	// watchTime is how long a frontend is watched after a change. A packet that the
	// old rules translated may still be queued, for instance to a program, and
	// create its flow after the first check, so a second check follows when the
	// time is over.
	watchTime = 2 * time.Second

	// retryMin and retryMax bound the back-off after a failed pass.
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second

	// A pass is followed by a rest of restFactor times its cost, because the kernel
	// walks its whole table for a dump, however few flows match. maxRest bounds the
	// rest: a pass that ends a million flows is not typical of the next one, and
	// later changes must not wait for it.
	restFactor = 4
	maxRest    = 5 * time.Second

	// maxHeldFlows bounds the stale flows held in memory between a dump and their
	// deletion, to about 25 MB: a single endpoint may have a million flows, and the
	// process has less memory than the kernel. If there are more, the kernel is asked
	// again.
	maxHeldFlows = 1 << 17
)

type Settings struct {
	Flows      ct.Interface                   // used by the Reconciler only
	LocalAddrs func() ([]netip.Prefix, error) // the node's own addresses; called in every pass

	// Passed, if not nil, is called after every pass, for each family that was
	// checked, with the time it took and the number of flows deleted.
	Passed func(f proxy.Family, took time.Duration, deleted int)

	// ThreadTime returns the CPU time of the calling thread, which is how the cost
	// of a pass is measured; nil means the wall clock. On a busy node a pass that
	// needs a millisecond may take half a second, and with the wall clock it would
	// be followed by two seconds of rest.
	ThreadTime func() time.Duration
}

// Reconciler ends stale flows. It is an observer of the engine.
type Reconciler struct {
	settings Settings
	wake     chan struct{}

	// Used by the goroutine of Run only.
	retry   time.Duration // the last back-off
	retryAt time.Time     // when it is over; zero if the last pass succeeded
	batch   int           // flows to end before the kernel is asked again

	mu    sync.Mutex // held only briefly, because the engine waits for it
	watch watch
}

// New returns a Reconciler that does nothing until Run is called.
func New(s Settings) *Reconciler {
	if s.ThreadTime == nil {
		begin := time.Now()
		s.ThreadTime = func() time.Duration { return time.Since(begin) }
	}
	return &Reconciler{settings: s, wake: make(chan struct{}, 1), batch: maxHeldFlows, watch: newWatch()}
}

// Applying announces a step before it is written. A write takes time, family by
// family, and until it is known to have succeeded the kernel may follow the old
// rows or the new ones.
func (r *Reconciler) Applying(d *proxy.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch.applying(d)
}

// Applied records that a step was written; node is the node after the step. It
// only wakes Run, which checks the flows.
func (r *Reconciler) Applied(node *proxy.Node, d *proxy.Delta, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch.applied(node, d, full, time.Now()); !r.watch.extended {
		return
	}
	r.watch.extended = false
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run ends stale flows until ctx ends, and then returns nil. It must be called
// at most once.
func (r *Reconciler) Run(ctx context.Context) error {
	runtime.LockOSThread() // ThreadTime measures this thread
	defer runtime.UnlockOSThread()
	alarm := time.NewTimer(0)
	alarm.Stop()
	defer alarm.Stop()
	var restUntil time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			alarm.Reset(time.Until(restUntil))
			continue
		case <-alarm.C:
		}
		select {
		case <-r.wake: // The pass that begins now covers this change too.
		default:
		}
		var next time.Time
		if restUntil, next = r.pass(ctx); !next.IsZero() {
			alarm.Reset(max(time.Until(restUntil), time.Until(next)))
		}
	}
}

// pass checks the flows of all watched frontends once. No pass may begin before
// restUntil; one is needed at next even without a further change, unless next is
// zero.
func (r *Reconciler) pass(ctx context.Context) (restUntil, next time.Time) {
	start, spent := time.Now(), r.settings.ThreadTime()
	err := r.reconcile(ctx)
	restUntil = time.Now().Add(min(maxRest, restFactor*(r.settings.ThreadTime()-spent)))
	r.mu.Lock()
	if err == nil {
		r.watch.checked(start)
	}
	next = r.watch.nextCheck(start)
	dropped := r.watch.dropped
	r.watch.dropped = 0
	r.mu.Unlock()
	if dropped > 0 {
		klog.FromContext(ctx).Info("Too many addresses of Services were removed before flows could be checked, stale flows to them may remain",
			"addresses", dropped)
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.retry, r.retryAt = 0, time.Time{}
	case !start.Before(r.retryAt): // A failed pass before retryAt was triggered by a change: keep the back-off, do not log again.
		r.retry = runner.Backoff(r.retry, retryMin, retryMax)
		r.retryAt = time.Now().Add(r.retry)
		klog.FromContext(ctx).Error(err, "Stale flows may remain, will try again", "retryIn", r.retry)
	}
	if !r.retryAt.IsZero() && (next.IsZero() || r.retryAt.Before(next)) {
		next = r.retryAt
	}
	return restUntil, next
}

// reconcile ends the stale flows of all watched frontends.
func (r *Reconciler) reconcile(ctx context.Context) error {
	local, err := r.settings.LocalAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	c := checker{watch: &r.watch, local: proxy.Outermost(local), serving: map[*proxy.ServicePort]map[netip.AddrPort]bool{}}
	r.mu.Lock()
	filters := r.watch.filters()
	r.mu.Unlock()
	var errs []error
	for _, family := range proxy.Families {
		start, checked, deleted := time.Now(), false, 0
		for _, protocol := range []proxy.Protocol{proxy.UDP, proxy.SCTP} {
			if by := (ct.Filter{IPv6: family == proxy.IPv6, Protocol: uint8(protocol)}); filters[by] {
				n, err := r.endStale(ctx, by, &c)
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

// endStale deletes the stale flows that match a filter, and returns how many it
// deleted.
func (r *Reconciler) endStale(ctx context.Context, by ct.Filter, c *checker) (deleted int, err error) {
	stale := func(f *ct.Flow) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return c.stale(f)
	}
	by.Most = r.batch
	for {
		flows, err := r.settings.Flows.Dump(ctx, by, stale)
		n, failed := r.delete(ctx, flows, stale)
		deleted += n
		// A full batch may have left out stale flows, even if none of its own was still stale when it was to be deleted.
		if err := errors.Join(err, failed); err != nil || len(flows) < r.batch {
			return deleted, err
		}
	}
}

// delete deletes the flows that are still stale, and returns how many it deleted.
//
// The rows may have changed since the dump, so each flow is checked again.
// Applying announces rules before they are written, so the rules that created the
// flow are known by now.
func (r *Reconciler) delete(ctx context.Context, flows []ct.Flow, stale func(*ct.Flow) bool) (deleted int, err error) {
	logger := klog.FromContext(ctx).V(4)
	failures := 0
	var first error
	for i := range flows {
		f := &flows[i]
		if !stale(f) {
			continue
		}
		switch err := r.settings.Flows.Delete(ctx, f); {
		case err == nil:
			deleted++
			r.mu.Lock()
			r.watch.flowEnded(f)
			r.mu.Unlock()
			logger.Info("Ended stale flow", "flow", f)
		case !errors.Is(err, ct.ErrNotFound): // Otherwise the flow has ended by itself.
			failures++
			first = cmp.Or(first, err)
		}
	}
	if failures > 0 {
		err = fmt.Errorf("end %d of %d stale flows: %w", failures, len(flows), first)
	}
	return deleted, err
}

// checker decides which flows are stale. It is valid for one pass.
type checker struct {
	*watch
	local   []netip.Prefix                                 // the node's own addresses, as proxy.Outermost returns them
	serving map[*proxy.ServicePort]map[netip.AddrPort]bool // cache of ServicePort.Serving
}

// stale reports whether a flow is ours and must be ended. While a write is
// pending, the flow must be stale under the rows before and after it.
func (c *checker) stale(f *ct.Flow) bool {
	switch exact, nodePort := frontendsOf(f); {
	case f.Zone != 0:
		return false
	case c.isLateReply(f):
		return true
	case !c.watches(exact) && !(c.watches(nodePort) && c.sentToNode(f) && c.tookNodePorts(f.Orig.Dst.Addr())):
		return false
	default:
		return c.staleUnder(nil, f) && (c.pending == nil || c.staleUnder(c.pending, f))
	}
}

// frontendsOf returns the frontends that may have received a flow: the address
// that its client sends to, and the NodePort with the same port.
func frontendsOf(f *ct.Flow) (exact, nodePort frontend) {
	dst, protocol := f.Orig.Dst, proxy.Protocol(f.Protocol)
	unspecified := proxy.FamilyOf(dst.Addr()).Unspecified()
	return frontend{dst, protocol}, frontend{netip.AddrPortFrom(unspecified, dst.Port()), protocol}
}

// staleUnder reports whether a flow is stale under the rows after a write; nil
// means under the rows in force.
func (c *checker) staleUnder(p *pendingWrite, f *ct.Flow) bool {
	node := c.node
	if p != nil {
		node = p.node
	}
	exact, nodePort := frontendsOf(f)
	o := c.owner(exact, p)
	if o.row == nil && node.TakesNodePorts(f.Orig.Dst.Addr()) && c.sentToNode(f) {
		o = c.owner(nodePort, p)
	}
	switch {
	case o.row == nil:
		return translated(f)
	case c.serves(o.row, f.Reply.Src):
		return false
	default:
		return translated(f) || forwards(o, node)
	}
}

// translated reports whether a flow is answered from another address than the
// one that its client sends to.
func translated(f *ct.Flow) bool { return f.Reply.Src != f.Orig.Dst }

// serves reports whether an address is an endpoint of the row that may have flows.
func (c *checker) serves(sp *proxy.ServicePort, a netip.AddrPort) bool {
	if c.serving[sp] == nil {
		c.serving[sp] = sp.Serving()
	}
	return c.serving[sp][a]
}

// forwards reports whether a frontend forwards the clients of any origin to an
// endpoint.
func forwards(o owner, node *proxy.Node) bool {
	policy := o.row.Policy(o.kind, node)
	return slices.ContainsFunc(policy[:], func(r proxy.Route) bool { return len(r.To) > 0 })
}

// sentToNode reports whether a flow's client sends to an address of this node. A
// flow to an endpoint that has just been removed from the NodePort counts as well,
// because its destination may be a virtual address that has moved to another node.
func (c *checker) sentToNode(f *ct.Flow) bool {
	_, nodePort := frontendsOf(f)
	return proxy.WithinOutermost(c.local, f.Orig.Dst.Addr()) || translated(f) && c.departures[departure{nodePort, f.Reply.Src}]
}

// tookNodePorts reports whether an address of the node accepts NodePorts, or did
// when a watched frontend was written.
func (c *checker) tookNodePorts(a netip.Addr) bool {
	was := *c.node
	was.NodePorts = c.formerNodePorts
	return c.node.TakesNodePorts(a) || was.TakesNodePorts(a)
}
