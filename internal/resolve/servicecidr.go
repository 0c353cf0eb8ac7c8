package resolve

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// UpdateServiceCIDR notes an event: previous is nil for an addition, current
// for a deletion. It reports whether a change is pending.
func (r *Resolver) UpdateServiceCIDR(previous, current *networkingv1.ServiceCIDR) bool {
	switch {
	case current != nil:
		ranges, problems := apiobject.ParseServiceCIDR(current)
		r.setServiceCIDR(strings.Clone(current.Name), ranges, problems)
	case previous != nil:
		r.setServiceCIDR(previous.Name, nil, nil)
	}
	return r.cidrsPending
}

// setServiceCIDR holds the ranges of one object by its name: another object
// with the same range keeps it when this one goes.
func (r *Resolver) setServiceCIDR(name string, ranges []netip.Prefix, problems []apiobject.Problem) {
	o := clusterObject("ServiceCIDR", name)
	r.read.set(o, o.problems(problems))
	if slices.Equal(r.cidrs[name], ranges) {
		return
	}
	r.cidrsPending = true
	if len(ranges) == 0 {
		delete(r.cidrs, name)
	} else {
		r.cidrs[name] = ranges
	}
}

// applyServiceCIDRs makes the pending ranges the state's, in a step.
func (r *Resolver) applyServiceCIDRs(d *proxy.Delta) {
	if !r.cidrsPending {
		return
	}
	r.cidrsPending = false
	var all []netip.Prefix
	for _, ranges := range r.cidrs {
		all = append(all, ranges...)
	}
	union := proxy.Outermost(r.settings.served(all))
	if !slices.Equal(union, r.state.CIDRs) {
		d.CIDRs = &union
	}
}
