package proxy

import (
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
func (d *Delta) Empty() bool { return !d.Writes() && len(d.HealthChecks) == 0 }

// Writes reports whether the delta gives a dataplane something to do.
func (d *Delta) Writes() bool {
	return len(d.Upserts) > 0 || len(d.Removes) > 0 || d.Node != nil || d.CIDRs != nil ||
		slices.ContainsFunc(d.HealthChecks, HealthCheckChange.Moves)
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
	s.applyHealthChecks(d.HealthChecks)
}

// Changed names what the step changes.
func (d *Delta) Changed() *Changed {
	c := &Changed{Node: d.Node != nil, CIDRs: d.CIDRs != nil}
	for _, r := range d.Removes {
		c.Rows = append(c.Rows, r.Key)
	}
	for _, u := range d.Upserts {
		c.Rows = append(c.Rows, u.New.Key)
	}
	sortKeys(c.Rows)
	for _, h := range d.HealthChecks {
		c.HealthChecks = append(c.HealthChecks, h.Key())
	}
	return c
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
func (s *State) Keys() []PortKey {
	keys := make([]PortKey, 0, len(s.Rows))
	for k := range s.Rows {
		keys = append(keys, k)
	}
	sortKeys(keys)
	return keys
}
