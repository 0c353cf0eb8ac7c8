package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// UpdateServiceCIDR notes an event: previous is nil for an addition, current
// for a deletion. It reports whether a change is pending. Ranges are held by the
// object's name: another one with the same range keeps it when this one goes.
func (r *Resolver) UpdateServiceCIDR(previous, current *networkingv1.ServiceCIDR) bool {
	name := strings.Clone(cmp.Or(current, previous).Name)
	var ranges []netip.Prefix
	var found []apiobject.Problem
	if current != nil {
		ranges, found = apiobject.ParseServiceCIDR(current)
	}
	o := clusterObject("ServiceCIDR", name)
	r.problems.replace(r.read, o, o.problems(found))
	if slices.Equal(r.cidrs[name], ranges) {
		return r.cidrsPending
	}
	r.cidrsPending = true
	if r.cidrs[name] = ranges; len(ranges) == 0 {
		delete(r.cidrs, name)
	}
	return true
}

// applyServiceCIDRs makes the pending ranges the state's, in a step.
func (r *Resolver) applyServiceCIDRs(d *proxy.Delta) {
	if !r.cidrsPending {
		return
	}
	r.cidrsPending = false
	all := slices.Concat(slices.Collect(maps.Values(r.cidrs))...)
	union := proxy.Outermost(r.settings.served(all))
	if !slices.Equal(union, r.state.CIDRs) {
		d.CIDRs = &union
	}
}
