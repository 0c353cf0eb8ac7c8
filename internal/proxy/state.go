package proxy

import (
	"maps"
	"net/netip"
	"slices"
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

// Empty reports whether the delta changes nothing.
func (d *Delta) Empty() bool {
	return len(d.Upserts)+len(d.Removes)+len(d.HealthChecks) == 0 && d.Node == nil && d.CIDRs == nil
}

// Apply takes the step.
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

// Delta returns the step that takes what changed from what is held to what is wanted.
func (c *Changed) Delta(
	want *State, heldRow func(PortKey) *ServicePort, heldCheck func(HealthCheckKey) *HealthCheck,
) *Delta {
	d := &Delta{}
	for _, k := range c.Rows {
		held := heldRow(k)
		switch row := want.Rows[k]; {
		case row == held:
		case row != nil:
			d.Upserts = append(d.Upserts, Upsert{Old: held, New: row})
		default:
			d.Removes = append(d.Removes, held)
		}
	}
	for _, k := range c.HealthChecks {
		if h := (HealthCheckChange{Old: heldCheck(k), New: want.HealthChecks[k]}); h.Old != h.New {
			d.HealthChecks = append(d.HealthChecks, h)
		}
	}
	if c.Node {
		d.Node = want.Node
	}
	if c.CIDRs {
		cidrs := want.CIDRs
		d.CIDRs = &cidrs
	}
	return d
}

// Keys returns the keys of all rows, sorted.
func (s *State) Keys() []PortKey { return slices.SortedFunc(maps.Keys(s.Rows), ComparePortKeys) }
