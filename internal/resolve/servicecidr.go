package resolve

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"sluice/internal/proxy"
)

// UpdateServiceCIDR notes an event: previous is nil for an addition, current
// for a deletion. It reports whether a change is pending.
func (r *Resolver) UpdateServiceCIDR(previous, current *networkingv1.ServiceCIDR) bool {
	switch {
	case current != nil:
		ranges, problems := readServiceCIDR(current)
		r.read.set(clusterObject(kindServiceCIDR, strings.Clone(current.Name)), problems)
		r.setServiceCIDR(strings.Clone(current.Name), ranges)
	case previous != nil:
		r.read.set(clusterObject(kindServiceCIDR, previous.Name), nil)
		r.setServiceCIDR(previous.Name, nil)
	}
	return r.cidrsPending
}

func readServiceCIDR(obj *networkingv1.ServiceCIDR) ([]netip.Prefix, []Problem) {
	r := report{object: clusterObject(kindServiceCIDR, obj.Name)}
	var ranges []netip.Prefix
	for i, s := range obj.Spec.CIDRs {
		p, err := parsePrefix(s)
		if err != nil {
			r.add(indexed("spec.cidrs", i, ""), "%v", err)
			continue
		}
		ranges = append(ranges, p)
	}
	return ranges, r.problems
}

// setServiceCIDR holds the ranges of one object by its name: another object
// with the same range keeps it when this one goes.
func (r *Resolver) setServiceCIDR(name string, ranges []netip.Prefix) {
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
