package differ

import (
	"context"
	"iter"
	"math"
	"slices"

	"sluice/internal/proxy"
)

// Planned is a change that a Sync would write, and the rows that it is for: none
// if it is for all of them, or takes away what none wants. A health check is for a
// Service, and so for a row without a port.
type Planned[ID comparable, V any] struct {
	*Change[ID, V]
	Rows []*proxy.PortKey
}

// Sides returns what an object is in the kernel and what it is to be, as lines;
// none if it is not there.
func (p Planned[ID, V]) Sides(text func(ID, V) []string) (was, is []string) {
	if p.Had {
		was = text(p.ID, p.Old)
	}
	if p.Has {
		is = text(p.ID, p.New)
	}
	return was, is
}

// Plan returns what the first Sync of a differ would write, in order, and writes
// nothing. Rows are rendered in the order of their keys, so that the same state
// gets the same numbers each time.
func Plan[ID comparable, V any](ctx context.Context, m Mode[ID, V], want *proxy.State) (all []Planned[ID, V], refused proxy.Refused, err error) {
	m.Limit = func() int { return math.MaxInt }
	m.Write = func(_ context.Context, some []*Change[ID, V]) error {
		for _, c := range some {
			all = append(all, Planned[ID, V]{Change: c})
		}
		return nil
	}
	d := New(m)
	d.keys = func(s *proxy.State) iter.Seq[proxy.PortKey] { return slices.Values(s.Keys()) }
	c, refused := newChanges(&d.mode), proxy.Refused{}
	if err := d.sync(ctx, c, want, refused); err != nil {
		return nil, nil, err
	}
	c.end(true)
	checks := map[ID][]*proxy.PortKey{}
	for key, h := range want.HealthChecks {
		of := &proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: key.Namespace, Name: key.Name}, Family: key.Family}
		d.healthCheck(h, func(x ID, _ V) { checks[x] = append(checks[x], of) })
	}
	for i, p := range all {
		all[i].Rows = append(c.owners(p.Change), checks[p.ID]...)
	}
	return all, refused, nil
}
