package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// State is everything that the kernel should do.
type State struct {
	Rows  map[PortKey]*ServicePort
	Node  *Node
	CIDRs []netip.Prefix // the ranges that ClusterIPs are allocated from; no range contains another

	HealthChecks map[HealthCheckKey]*HealthCheck // a dataplane may have to open their ports
}

// NewState returns a state without rows, and with an empty Node.
func NewState() *State {
	return &State{Rows: map[PortKey]*ServicePort{}, Node: &Node{}}
}

// Delta is the difference between two versions of a State.
type Delta struct {
	Upserts []Upsert
	Removes []*ServicePort  // the rows that are removed, in their last version
	Node    *Node           // nil if it did not change
	CIDRs   *[]netip.Prefix // nil if they did not change

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

// Without returns a copy of the state without the refused rows.
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

// HealthCheckKey identifies the health check of a Service in one family.
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

// HealthCheck is a health-check node port, at which load balancers ask whether this
// node has endpoints of a Service. Forwarding does not depend on it, but a dataplane
// may have to open the port. It is immutable once published.
type HealthCheck struct {
	Key   HealthCheckKey
	Port  uint16
	Local int // how many distinct addresses the ready endpoints on this node have
}

func (h *HealthCheck) String() string {
	return fmt.Sprintf("%v port=%d local=%d", h.Key, h.Port, h.Local)
}

// HealthCheckChange is a health check before and after a change. Old is nil if it was
// added, New if it was removed.
type HealthCheckChange struct {
	Old, New *HealthCheck
}

func (c HealthCheckChange) Key() HealthCheckKey { return cmp.Or(c.New, c.Old).Key }

// ChangesPort reports whether a port has to be opened or closed. Other changes do not
// concern dataplanes.
func (c HealthCheckChange) ChangesPort() bool {
	return c.Old == nil || c.New == nil || c.Old.Port != c.New.Port
}
