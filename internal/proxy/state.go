package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// State is everything the kernel should do.
type State struct {
	Rows  map[PortKey]*ServicePort
	Node  *Node
	CIDRs []netip.Prefix // the ranges ClusterIPs come from; none within another

	HealthChecks map[HealthCheckKey]*HealthCheck // a dataplane opens their ports, if anything
}

// NewState returns a state with no rows, for a node that knows nothing.
func NewState() *State {
	return &State{Rows: map[PortKey]*ServicePort{}, Node: &Node{}}
}

// Delta is one step of a State, with the rows as they were.
type Delta struct {
	Upserts []Upsert
	Removes []*ServicePort  // the rows that go, as they were
	Node    *Node           // nil: as before
	CIDRs   *[]netip.Prefix // nil: as before

	HealthChecks []HealthCheckChange
}

// Upsert is a new or changed row. Old is nil for a new one.
type Upsert struct {
	Old, New *ServicePort
}

func (d *Delta) Empty() bool {
	return len(d.Upserts)+len(d.Removes)+len(d.HealthChecks) == 0 && d.Node == nil && d.CIDRs == nil
}

func (s *State) Apply(d *Delta) {
	for _, r := range d.Removes {
		delete(s.Rows, r.Key)
	}
	for _, u := range d.Upserts {
		s.Rows[u.New.Key] = u.New
	}
	if d.Node != nil {
		s.Node = d.Node
	}
	if d.CIDRs != nil {
		s.CIDRs = *d.CIDRs
	}
	for _, c := range d.HealthChecks {
		if c.New == nil {
			delete(s.HealthChecks, c.Old.Key)
			continue
		}
		if s.HealthChecks == nil {
			s.HealthChecks = map[HealthCheckKey]*HealthCheck{}
		}
		s.HealthChecks[c.New.Key] = c.New
	}
}

func (s *State) Keys() []PortKey { return slices.SortedFunc(maps.Keys(s.Rows), ComparePortKeys) }

func (s *State) Without(rows Refused) *State {
	out := *s
	out.Rows = maps.Clone(s.Rows)
	for key := range rows {
		delete(out.Rows, key)
	}
	return &out
}

// String returns the state as a table, one row per service port, sorted.
func (s *State) String() string {
	var b strings.Builder
	for _, k := range s.Keys() {
		fmt.Fprintln(&b, s.Rows[k])
	}
	return b.String()
}

// HealthCheckKey names the health check of a Service in one family.
type HealthCheckKey struct {
	Namespace string
	Name      string
	Family    Family
}

// String returns "namespace/name/family".
func (k HealthCheckKey) String() string {
	return k.Namespace + "/" + k.Name + "/" + k.Family.String()
}

func CompareHealthCheckKeys(a, b HealthCheckKey) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Family, b.Family),
	)
}

// HealthCheck is what a load balancer may ask this node about a Service: at a
// port of the node's own, whether the node has endpoints for it. No packet of
// the Service depends on it; a dataplane may have to open the port. It is
// immutable once published.
type HealthCheck struct {
	Key   HealthCheckKey
	Port  uint16 // where the node answers
	Local int    // distinct addresses of ready endpoints on this node
}

func (h *HealthCheck) String() string {
	return fmt.Sprintf("%v port=%d local=%d", h.Key, h.Port, h.Local)
}

// HealthCheckChange is a health check before and after a step. Old is nil for a
// new one, New for one that is gone.
type HealthCheckChange struct {
	Old, New *HealthCheck
}

func (c HealthCheckChange) Key() HealthCheckKey { return cmp.Or(c.New, c.Old).Key }

// Moves reports whether a port of the node begins or ends to be a health
// check's, which is all that a dataplane can be concerned with.
func (c HealthCheckChange) Moves() bool {
	return c.Old == nil || c.New == nil || c.Old.Port != c.New.Port
}
