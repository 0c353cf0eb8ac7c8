package proxytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sluice/internal/proxy"
)

// wanted has the state that each dataplane was last asked for, so that tests
// need not carry it from step to step.
var wanted sync.Map

// Sync asks a dataplane for a state.
func Sync(ctx context.Context, d proxy.Dataplane, want *proxy.State) error {
	wanted.Store(d, &proxy.State{
		Rows: maps.Clone(want.Rows), Node: want.Node, CIDRs: want.CIDRs, HealthChecks: maps.Clone(want.HealthChecks),
	})
	return result(d.Sync(ctx, want))
}

// Apply asks a dataplane for what a step makes of the state it was last asked for.
func Apply(ctx context.Context, d proxy.Dataplane, step *proxy.Delta) error {
	last, _ := wanted.LoadOrStore(d, proxy.NewState())
	want := last.(*proxy.State)
	want.Apply(step)
	return result(d.Apply(ctx, want, changed(step)))
}

// RefusedError says that some rows were refused, and nothing else was wrong.
type RefusedError struct{ Rows proxy.Refused }

// Error names every refused row.
func (e *RefusedError) Error() string {
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(e.Rows), proxy.ComparePortKeys) {
		all = append(all, fmt.Sprintf("%v: %v", k, e.Rows[k]))
	}
	return strings.Join(all, "; ")
}

// changed names what a step changes.
func changed(d *proxy.Delta) *proxy.Changed {
	c := &proxy.Changed{Node: d.Node != nil, CIDRs: d.CIDRs != nil}
	for _, r := range d.Removes {
		c.Rows = append(c.Rows, r.Key)
	}
	for _, u := range d.Upserts {
		c.Rows = append(c.Rows, u.New.Key)
	}
	slices.SortFunc(c.Rows, proxy.ComparePortKeys)
	for _, h := range d.HealthChecks {
		c.HealthChecks = append(c.HealthChecks, h.Key())
	}
	return c
}

// result makes one error of what a dataplane answers.
func result(refused proxy.Refused, err error) error {
	if err == nil && len(refused) > 0 {
		return &RefusedError{refused}
	}
	return err
}

// Values returns a metric of a dataplane by the values of its labels.
func Values(ctx context.Context, d proxy.Measured, name string) map[string]float64 {
	values := map[string]float64{}
	for _, m := range d.Metrics(ctx) {
		if m.Name == name {
			m.Read(func(value float64, labels ...string) { values[strings.Join(labels, " ")] = value })
		}
	}
	return values
}
