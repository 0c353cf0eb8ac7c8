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

// Resolver turns what the trackers gathered, the Node and the ServiceCIDRs into
// rows. It is for one goroutine, its trackers included.
type Resolver struct {
	Services  *ServiceChangeTracker
	Endpoints *EndpointsChangeTracker

	settings Settings

	entries map[types.NamespacedName]*entry
	claims  claims

	services      int    // that have rows
	servicesStamp uint64 // grows whenever a Service comes or goes that has rows
	endpoints     int    // of all slices

	nodeKnown    bool // there is or was a Node
	nodeRead     apiobject.Node
	nodeProblems []Problem
	nodePending  bool
	node         *proxy.Node // that rows are resolved for; in Update it is ahead of the state's

	cidrs        map[string][]netip.Prefix // by the ServiceCIDR's name
	cidrsPending bool

	state    *proxy.State
	first    bool // no Update has been yet
	problems *problems
	read     map[object][]Problem // found while reading objects
	resolved map[object][]Problem // found while resolving rows
}

// entry is everything known by a Service's name.
type entry struct {
	name    types.NamespacedName
	service *service             // nil: no such Service, or it has no rows
	slices  []*endpointSlice     // sorted by name, so that their order of arrival does not matter
	rows    []*proxy.ServicePort // as published
}

// New returns a resolver that knows nothing but its settings.
func New(s Settings) *Resolver {
	s.Families = slices.DeleteFunc(slices.Clone(proxy.Families[:]), func(f proxy.Family) bool { return !s.serves(f) })
	r := &Resolver{
		Services:    &ServiceChangeTracker{newTracker[*service](), s.IgnoreExternalIPs, s.Allowed, s.Balancing},
		Endpoints:   &EndpointsChangeTracker{newTracker[*endpointSlice](), s.NodeName, s.Balancing},
		settings:    s,
		entries:     map[types.NamespacedName]*entry{},
		nodePending: true, // the settings alone make a Node
		cidrs:       map[string][]netip.Prefix{},
		state:       proxy.NewState(),
		first:       true,
		problems:    &problems{now: map[Problem]int{}, was: map[Problem]bool{}},
		read:        map[object][]Problem{},
		resolved:    map[object][]Problem{},
	}
	r.claims = claims{map[claim]claimant{}, map[claim]sets.Set[claimant]{}, map[claim]*rivalry{}, r.problems}
	r.node = r.state.Node
	return r
}

// Configure changes the settings, but for the node's name, the families and
// those that are for New only. The next Update puts them in force.
func (r *Resolver) Configure(s Settings) {
	s.NodeName, s.Families = r.settings.NodeName, r.settings.Families
	r.settings = s
	r.nodePending = true
}

// State returns the state after the last Update. It is the resolver's own: the
// caller must not modify it, and the next Update does. Rows are immutable.
func (r *Resolver) State() *proxy.State { return r.state }

// Update resolves all that is pending and returns the step it makes, which is
// empty if nothing came of it. Only rows that really changed are in the step.
// The cost follows the change, not the number of Services; a new zone or IP of
// the Node is a change of every Service.
func (r *Resolver) Update() *proxy.Delta {
	d := &proxy.Delta{}
	dirty := map[*entry]bool{}
	r.applyNode(d, dirty)
	r.applyServiceCIDRs(d)
	r.Services.take(func(name types.NamespacedName, from, to *service) {
		r.applyService(r.entry(name), from, to, dirty)
	})
	r.claims.settle()
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
	r.first = false
	return d
}

// entry returns the entry of a name, a new one if need be.
func (r *Resolver) entry(name types.NamespacedName) *entry {
	e := r.entries[name]
	if e == nil {
		e = &entry{name: name}
		r.entries[name] = e
	}
	return e
}

// applyService replaces a Service. Whoever wins or loses an address by that is
// dirty too.
func (r *Resolver) applyService(e *entry, from, to *service, dirty map[*entry]bool) {
	e.service = to
	dirty[e] = true
	r.changeClaims(from, r.claims.remove, dirty)
	r.changeClaims(to, r.claims.add, dirty)
	var problems []Problem
	if to != nil {
		problems = to.problems
	}
	r.problems.replace(r.read, serviceObject(e.name), problems)
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

// applySlice replaces a slice. It may have moved from one Service to another.
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
	r.problems.replace(r.read, sliceObject(name), problems)
}

func (e *entry) find(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *endpointSlice, name string) int {
		return strings.Compare(s.name.Name, name)
	})
}

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
