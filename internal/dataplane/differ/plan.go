package differ

import (
	"context"
	"iter"
	"math"
	"slices"

	"sluice/internal/proxy"
)

// Planned is a change that a Sync would write, and the rows that want the object.
// There are none if it does not belong to single rows, or if no row wants it any
// longer. A health check belongs to a Service, which is named by a key without a
// port.
type Planned[ID comparable, V any] struct {
	*Change[ID, V]
	Rows []*proxy.PortKey
}

// Sides returns the text of an object as the kernel has it and as it is wanted;
// nil where there is no such object.
func (p Planned[ID, V]) Sides(text func(ID, V) []string) (was, is []string) {
	if p.Had {
		was = text(p.ID, p.Old)
	}
	if p.Has {
		is = text(p.ID, p.New)
	}
	return was, is
}

// Plan returns what the first Sync of a new differ would write, in order, without
// writing it. Rows are rendered in the order of their keys, so that a mode that
// numbers objects as it renders them gives the same state the same numbers.
func Plan[ID comparable, V any](ctx context.Context, m Mode[ID, V], want *proxy.State) (all []Planned[ID, V], refused proxy.Refused, err error) {
	m.Limit = func() int { return math.MaxInt }
	m.Write = func(_ context.Context, some []*Change[ID, V]) error {
		for _, c := range some {
			all = append(all, Planned[ID, V]{Change: c})
		}
		return nil
	}
	d := New(m)
	d.syncOrder = func(s *proxy.State) iter.Seq[proxy.PortKey] { return slices.Values(s.Keys()) }
	c, refused := newChanges(&d.mode), proxy.Refused{}
	if err := d.sync(ctx, c, want, refused); err != nil {
		return nil, nil, err
	}
	c.done(true)
	checks := map[ID][]*proxy.PortKey{}
	for key, h := range want.HealthChecks {
		service := &proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: key.Namespace, Name: key.Name}, Family: key.Family}
		d.renderHealthCheck(h, func(x ID, _ V) { checks[x] = append(checks[x], service) })
	}
	for i, p := range all {
		all[i].Rows = append(c.owners(p.Change), checks[p.ID]...)
	}
	return all, refused, nil
}
