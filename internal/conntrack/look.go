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

// look ends the stale flows of all watched frontends.
func (r *Reconciler) look(ctx context.Context) error {
	local, err := r.settings.LocalAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	j := judge{watch: &r.watch, local: map[netip.Addr]bool{}, serving: map[*proxy.ServicePort]map[netip.AddrPort]struct{}{}}
	for _, a := range local {
		j.local[a] = true
	}
	filters := map[proxy.Family][]ct.Filter{}
	for f := range r.watch.until {
		family := proxy.FamilyOf(f.addr.Addr())
		by := ct.Filter{IPv6: family == proxy.IPv6, Protocol: uint8(f.protocol)}
		if !slices.Contains(filters[family], by) {
			filters[family] = append(filters[family], by)
		}
	}
	var errs []error
	for _, family := range proxy.Families {
		if len(filters[family]) > 0 {
			errs = append(errs, r.lookAt(ctx, family, filters[family], &j))
		}
	}
	return errors.Join(errs...)
}

// lookAt ends the stale flows of one family.
func (r *Reconciler) lookAt(ctx context.Context, family proxy.Family, filters []ct.Filter, j *judge) error {
	p := Pass{Family: family}
	start, waited := time.Now(), r.waited
	var errs []error
	for _, by := range filters {
		n, err := r.end(ctx, by, j)
		p.Deleted += n
		errs = append(errs, err)
	}
	p.Elapsed = time.Since(start) - (r.waited - waited)
	if r.settings.Passed != nil {
		r.settings.Passed(p)
	}
	if p.Deleted > 0 {
		klog.FromContext(ctx).V(2).Info("Ended stale flows", "family", family, "flows", p.Deleted, "elapsed", p.Elapsed)
	}
	return errors.Join(errs...)
}

// end deletes the stale flows among those of a filter, and returns how many.
//
// The kernel is ahead of what we were told: a flow may have begun by rules that
// we hear of in a moment. So each flow is judged again by the newest rows, and
// one whose endpoint is not known to have left is given that moment first.
func (r *Reconciler) end(ctx context.Context, by ct.Filter, j *judge) (int, error) {
	suspects, err := r.settings.Flows.Dump(ctx, by, j.stale)
	var sure, unsure []ct.Flow
	for _, f := range suspects {
		if _, left := j.left[f.Reply.Src]; left {
			sure = append(sure, f)
		} else {
			unsure = append(unsure, f)
		}
	}
	n, errSure := r.delete(ctx, sure, j)
	if len(unsure) == 0 {
		return n, errors.Join(err, errSure)
	}
	select {
	case <-ctx.Done():
	case <-time.After(hearTime):
		r.waited += hearTime
	}
	m, errUnsure := r.delete(ctx, unsure, j)
	return n + m, errors.Join(err, errSure, errUnsure)
}

// delete deletes those flows that are stale by the newest rows, and returns how many.
func (r *Reconciler) delete(ctx context.Context, flows []ct.Flow, j *judge) (int, error) {
	if r.take() {
		r.unseen = true
	}
	logger := klog.FromContext(ctx).V(4)
	deleted, failed := 0, 0
	var first error
	for i := range flows {
		f := &flows[i]
		if !j.stale(f) {
			continue
		}
		switch err := r.settings.Flows.Delete(ctx, f); {
		case err == nil:
			deleted++
			j.cut(f)
			if logger.Enabled() {
				logger.Info("Ended stale flow", "flow", f.String())
			}
		case errors.Is(err, ct.ErrNotFound): // It ended by itself.
		default:
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if first != nil {
		first = fmt.Errorf("%d of %d flows: %w", failed, len(flows), first)
	}
	return deleted, first
}

// stale reports whether a flow is ours and must end.
func (j *judge) stale(f *ct.Flow) bool {
	if f.Zone != 0 {
		return false
	}
	if j.answers(f) {
		return true
	}
	protocol := proxy.Protocol(f.Protocol)
	dst := f.Orig.Dst
	exact := frontend{dst, protocol}
	byPort := frontend{netip.AddrPortFrom(proxy.FamilyOf(dst.Addr()).Unspecified(), dst.Port()), protocol}
	_, watched := j.until[exact]
	if _, ok := j.until[byPort]; ok && !watched {
		watched = j.tookNodePorts(dst.Addr())
	}
	if !watched {
		return false
	}
	o, owned := j.owners[exact]
	if !owned && j.takesNodePorts(dst.Addr()) {
		o, owned = j.owners[byPort]
	}
	switch {
	case !owned:
		return translated(f)
	case j.serves(o.row, f.Reply.Src):
		return false
	default:
		return translated(f) || j.translates(o)
	}
}

// translated reports whether somebody else than the one a client sends to answers.
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

// translates reports whether a frontend sends anybody to an endpoint.
func (j *judge) translates(o owner) bool {
	return slices.ContainsFunc(proxy.Origins[:], func(from proxy.Origin) bool {
		return len(o.row.Route(o.kind, from, j.node).To) > 0
	})
}

func (j *judge) takesNodePorts(a netip.Addr) bool { return j.local[a] && j.node.TakesNodePorts(a) }

// tookNodePorts reports whether an address takes NodePorts, or did.
func (j *judge) tookNodePorts(a netip.Addr) bool {
	was := proxy.Node{NodePorts: j.former}
	return j.takesNodePorts(a) || j.local[a] && was.TakesNodePorts(a)
}
