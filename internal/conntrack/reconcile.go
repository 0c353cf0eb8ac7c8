package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// judge decides on flows. It is made for one pass.
type judge struct {
	*watch
	local   map[netip.Addr]bool
	serving map[*proxy.ServicePort]map[netip.AddrPort]struct{} // of the rows that came up
}

// reconcile ends the stale flows of all watched frontends.
func (r *Reconciler) reconcile(ctx context.Context) error {
	local, err := r.settings.LocalAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	j := judge{watch: &r.watch, local: map[netip.Addr]bool{}, serving: map[*proxy.ServicePort]map[netip.AddrPort]struct{}{}}
	for _, a := range local {
		j.local[a] = true
	}
	r.mu.Lock()
	filters := r.watch.filters()
	r.mu.Unlock()
	var errs []error
	for _, family := range proxy.Families {
		start, checked, deleted := time.Now(), false, 0
		for _, protocol := range []proxy.Protocol{proxy.UDP, proxy.SCTP} {
			if by := filterOf(family, protocol); filters[by] {
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
//
// The rows may have changed since a flow was seen, so it is judged again. The
// rules by which it began were announced before they were written, and so they
// are known by now.
func (r *Reconciler) end(ctx context.Context, by ct.Filter, j *judge) (int, error) {
	stale := func(f *ct.Flow) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return j.stale(f)
	}
	flows, err := r.settings.Flows.Dump(ctx, by, stale)
	logger := klog.FromContext(ctx).V(4)
	deleted := 0
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
			if logger.Enabled() {
				logger.Info("Ended stale flow", "flow", f.String())
			}
		case !errors.Is(err, ct.ErrNotFound): // Else it ended by itself.
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d flows: %w", len(failures), len(flows), failures[0]))
	}
	return deleted, err
}

// stale reports whether a flow is ours and must end.
func (j *judge) stale(f *ct.Flow) bool {
	switch exact, byPort := frontendsOf(f); {
	case f.Zone != 0:
		return false
	case j.answersEnded(f):
		return true
	case !j.watches(exact) && !(j.watches(byPort) && j.tookNodePorts(f.Orig.Dst.Addr())):
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
	if dst := f.Orig.Dst.Addr(); o.row == nil && j.local[dst] && node.TakesNodePorts(dst) {
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
	set := j.serving[sp]
	if set == nil {
		set = servingOf(sp)
		j.serving[sp] = set
	}
	_, ok := set[a]
	return ok
}

// forwards reports whether a frontend sends anybody to an endpoint.
func forwards(o owner, node *proxy.Node) bool {
	policy := o.row.Policy(o.kind, node)
	return slices.ContainsFunc(policy[:], func(r proxy.Route) bool { return len(r.To) > 0 })
}

// tookNodePorts reports whether an address takes NodePorts, or did.
func (j *judge) tookNodePorts(a netip.Addr) bool {
	was := proxy.Node{NodePorts: j.former}
	return j.local[a] && (j.node.TakesNodePorts(a) || was.TakesNodePorts(a))
}
