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

// Delta is one step of a State. Old rows travel with the step, so that a
// dataplane writes differences and remembers nothing.
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

// Then returns the one step that does what d and then next do. Neither is changed.
func (d *Delta) Then(next *Delta) *Delta {
	c := newComposer()
	c.add(d)
	c.add(next)
	return c.delta()
}

// composer folds steps into one per row: what was there first, what is there last.
type composer struct {
	keys        []PortKey // in order of first appearance
	first, last map[PortKey]*ServicePort
	node        *Node
	cidrs       *[]netip.Prefix
	checks      []HealthCheckChange
}

func newComposer() *composer {
	return &composer{first: map[PortKey]*ServicePort{}, last: map[PortKey]*ServicePort{}}
}

func (c *composer) add(d *Delta) {
	for _, r := range d.Removes {
		c.row(r.Key, r, nil)
	}
	for _, u := range d.Upserts {
		c.row(u.New.Key, u.Old, u.New)
	}
	if d.Node != nil {
		c.node = d.Node
	}
	if d.CIDRs != nil {
		c.cidrs = d.CIDRs
	}
	c.checks = composeHealthChecks(c.checks, d.HealthChecks)
}

func (c *composer) row(k PortKey, from, to *ServicePort) {
	if _, seen := c.first[k]; !seen {
		c.keys = append(c.keys, k)
		c.first[k] = from
	}
	c.last[k] = to
}

func (c *composer) delta() *Delta {
	d := &Delta{Node: c.node, CIDRs: c.cidrs, HealthChecks: c.checks}
	for _, k := range c.keys {
		from, to := c.first[k], c.last[k]
		switch {
		case to != nil:
			d.Upserts = append(d.Upserts, Upsert{Old: from, New: to})
		case from != nil:
			d.Removes = append(d.Removes, from)
		}
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
