package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// Resolver turns Services, EndpointSlices, the Node and ServiceCIDRs into rows. It and
// its trackers are not safe for concurrent use.
type Resolver struct {
	Services  *ServiceChangeTracker
	Endpoints *EndpointsChangeTracker

	settings Settings

	entries map[types.NamespacedName]*entry
	claims  claims

	services      int    // how many have rows
	servicesStamp uint64 // incremented whenever a Service with rows is added or removed
	endpoints     int    // in all slices
	unreachable   int    // Services with rows, and without an endpoint that can be used

	nodeKnown    bool // a Node with our name has been seen
	nodeParsed   apiobject.Node
	nodeProblems []Problem
	nodePending  bool
	node         *proxy.Node // rows are resolved for it; during Update it is newer than that of the state

	cidrs        map[string][]netip.Prefix // by the name of the ServiceCIDR
	cidrsPending bool

	state         *proxy.State
	updated       bool // Update has been called
	problems      *problems
	parseProblems map[object][]Problem // found when objects were parsed
	rowProblems   map[object][]Problem // found when rows were resolved
}

// entry is everything known about the Service of one name.
type entry struct {
	name    types.NamespacedName
	service *service             // nil if there is none, or it has no rows
	slices  []*endpointSlice     // sorted by name, so that rows do not depend on the order of arrival
	rows    []*proxy.ServicePort // as published
}

// New returns a resolver without any objects.
func New(s Settings) *Resolver {
	s.Families = slices.DeleteFunc(slices.Clone(proxy.Families[:]), func(f proxy.Family) bool { return !s.serves(f) })
	r := &Resolver{
		Services:    &ServiceChangeTracker{newTracker[*service](), s.IgnoreExternalIPs, s.Allowed, s.Balancing},
		Endpoints:   &EndpointsChangeTracker{newTracker[*endpointSlice](), s.NodeName, s.Balancing},
		settings:    s,
		entries:     map[types.NamespacedName]*entry{},
		nodePending: true, // Even without a Node object the settings describe the node.
		cidrs:       map[string][]netip.Prefix{},
		state:       proxy.NewState(),
		problems:    &problems{now: map[Problem]int{}, was: map[Problem]bool{}},

		parseProblems: map[object][]Problem{},
		rowProblems:   map[object][]Problem{},
	}
	r.claims = claims{map[claim]claimant{}, map[claim]sets.Set[claimant]{}, map[claim]*claimChange{}, r.problems}
	r.node = r.state.Node
	return r
}

// Configure changes the settings, except for the node's name, the families, and those
// that only New uses. They apply from the next Update on.
func (r *Resolver) Configure(s Settings) {
	s.NodeName, s.Families = r.settings.NodeName, r.settings.Families
	r.settings = s
	r.nodePending = true
}

// State returns the state after the last Update. Callers must not modify it. The next
// Update modifies it, except for its rows, which are immutable.
func (r *Resolver) State() *proxy.State { return r.state }

// Update resolves everything that is pending and returns what changed, which may be
// nothing. Its cost depends on the change, not on the number of Services; but if the
// zone or the IPs of the Node change, all Services are resolved again.
func (r *Resolver) Update() *proxy.Delta {
	d := &proxy.Delta{}
	dirty := map[*entry]bool{}
	r.applyNode(d, dirty)
	r.applyServiceCIDRs(d)
	r.Services.take(func(name types.NamespacedName, from, to *service) {
		r.applyService(r.entry(name), from, to, dirty)
	})
	r.claims.updateProblems()
	r.Endpoints.take(func(name types.NamespacedName, from, to *endpointSlice) {
		r.applySlice(name, from, to, dirty)
	})
	for e := range dirty {
		r.resolve(e, d)
	}
	slices.SortFunc(d.Upserts, func(a, b proxy.Upsert) int { return proxy.ComparePortKeys(a.New.Key, b.New.Key) })
	slices.SortFunc(d.Removes, func(a, b *proxy.ServicePort) int { return proxy.ComparePortKeys(a.Key, b.Key) })
	slices.SortFunc(d.HealthChecks, func(a, b proxy.HealthCheckChange) int {
		return proxy.CompareHealthCheckKeys(a.Key(), b.Key())
	})
	r.state.Apply(d)
	r.updated = true
	return d
}

// entry returns the entry of a name, and creates it if necessary.
func (r *Resolver) entry(name types.NamespacedName) *entry {
	e := r.entries[name]
	if e == nil {
		e = &entry{name: name}
		r.entries[name] = e
	}
	return e
}

// applyService replaces a Service. Services that win or lose an address because of it
// become dirty too.
func (r *Resolver) applyService(e *entry, from, to *service, dirty map[*entry]bool) {
	e.service = to
	dirty[e] = true
	r.changeClaims(from, r.claims.remove, dirty)
	r.changeClaims(to, r.claims.add, dirty)
	var problems []Problem
	if to != nil {
		problems = to.problems
	}
	r.problems.replace(r.parseProblems, serviceObject(e.name), problems)
}

// changeClaims adds or removes all claims of a Service, which may be nil.
func (r *Resolver) changeClaims(s *service, change func(claim, claimant) *service, dirty map[*entry]bool) {
	if s == nil {
		return
	}
	for _, f := range r.settings.Families {
		for p := range s.portsOf(f) {
			for cl, by := range p.claims() {
				if other := change(cl, by); other != nil {
					dirty[r.entry(other.name)] = true
				}
			}
		}
	}
}

// applySlice replaces a slice, which may belong to another Service now.
func (r *Resolver) applySlice(name types.NamespacedName, from, to *endpointSlice, dirty map[*entry]bool) {
	var problems []Problem
	if from != nil {
		e := r.entry(from.service)
		dirty[e] = true
		at, _ := e.find(name.Name)
		e.slices = slices.Delete(e.slices, at, at+1)
		r.endpoints -= len(from.endpoints)
	}
	if to != nil {
		problems = to.problems
		e := r.entry(to.service)
		dirty[e] = true
		at, _ := e.find(name.Name)
		e.slices = slices.Insert(e.slices, at, to)
		r.endpoints += len(to.endpoints)
	}
	r.problems.replace(r.parseProblems, sliceObject(name), problems)
}

func (e *entry) find(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *endpointSlice, name string) int {
		return strings.Compare(s.name.Name, name)
	})
}

// UpdateServiceCIDR handles an event: previous is nil if the object was added, current
// if it was deleted. It reports whether a change is pending. Ranges are kept by the name
// of the object, so that a range that two objects have stays when one is deleted.
func (r *Resolver) UpdateServiceCIDR(previous, current *networkingv1.ServiceCIDR) bool {
	name := strings.Clone(cmp.Or(current, previous).Name)
	var ranges []netip.Prefix
	var found []apiobject.Problem
	if current != nil {
		ranges, found = apiobject.ParseServiceCIDR(current)
	}
	o := clusterObject("ServiceCIDR", name)
	problems := o.problems(found)
	if slices.Equal(r.cidrs[name], ranges) && slices.Equal(r.parseProblems[o], problems) {
		return r.cidrsPending
	}
	r.cidrsPending = true
	r.problems.replace(r.parseProblems, o, problems)
	if r.cidrs[name] = ranges; len(ranges) == 0 {
		delete(r.cidrs, name)
	}
	return true
}

// applyServiceCIDRs adds a change of the ranges to a step.
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
