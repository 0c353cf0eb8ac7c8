package resolve

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// ServiceNames returns the names of the Services that have rows, in no order.
func (r *Resolver) ServiceNames() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(r.entries))
	for name, e := range r.entries {
		if len(e.rows) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// ServicesStamp is another number whenever ServiceNames returns other names.
func (r *Resolver) ServicesStamp() uint64 { return r.servicesStamp }

// Rows returns the rows of a Service, as published, and how many endpoints its
// slices have: in the family that has the most, as a pod has an address of each.
func (r *Resolver) Rows(name types.NamespacedName) (rows []*proxy.ServicePort, endpoints int) {
	e := r.entries[name]
	if e == nil {
		return nil, 0
	}
	var n [len(proxy.Families)]int
	for _, s := range e.slices {
		n[s.Family] += len(s.endpoints)
	}
	return e.rows, slices.Max(n[:])
}

// Problems returns all that is wrong as of the last Update, in no order.
func (r *Resolver) Problems() []Problem { return slices.Collect(maps.Keys(r.problems.now)) }

// ProblemCount returns how many problems there are.
func (r *Resolver) ProblemCount() int { return len(r.problems.now) }

// ProblemCounts returns how many problems each Service has, those of its
// EndpointSlices included. Its cost follows the problems that there are.
func (r *Resolver) ProblemCounts() map[types.NamespacedName]int {
	counts := map[types.NamespacedName]int{}
	for p := range r.problems.now {
		if name, ok := p.Service(); ok {
			counts[name]++
		}
	}
	for o, list := range r.read {
		if s := r.Endpoints.known[o.name]; o.kind == sliceKind && s != nil {
			counts[s.service] += len(list)
		}
	}
	return counts
}

// Counts returns how many Services have rows, and how many endpoints all
// EndpointSlices have.
func (r *Resolver) Counts() (services, endpoints int) { return r.services, r.endpoints }
