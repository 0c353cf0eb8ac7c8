package proxytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice/internal/proxy"
)

// wanted has the last wanted state of each dataplane, so that tests need not keep it.
var wanted sync.Map

// Many returns the larger number of Services of a test that compares costs: n, but a tenth of it
// under -short, where it still shows a cost that grows with the number.
func Many(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// Sync calls Sync of a dataplane.
func Sync(ctx context.Context, d proxy.Dataplane, want *proxy.State) error {
	wanted.Store(d, &proxy.State{
		Rows: maps.Clone(want.Rows), Node: want.Node, CIDRs: want.CIDRs, HealthChecks: maps.Clone(want.HealthChecks),
	})
	return result(d.Sync(ctx, want))
}

// Apply calls Apply of a dataplane with its last wanted state, changed by a step.
func Apply(ctx context.Context, d proxy.Dataplane, step *proxy.Delta) error {
	last, _ := wanted.LoadOrStore(d, proxy.NewState())
	want := last.(*proxy.State)
	want.Apply(step)
	return result(d.Apply(ctx, want, changed(step)))
}

// MustSync calls Sync and fails the test at once if there is an error or a row is refused.
func MustSync(tb testing.TB, d proxy.Dataplane, want *proxy.State) {
	tb.Helper()
	if err := Sync(tb.Context(), d, want); err != nil {
		tb.Fatal(err)
	}
}

// MustApply calls Apply and fails the test at once if there is an error or a row is refused.
func MustApply(tb testing.TB, d proxy.Dataplane, step *proxy.Delta) {
	tb.Helper()
	if err := Apply(tb.Context(), d, step); err != nil {
		tb.Fatal(err)
	}
}

// RefusedError means that rows were refused and that there was no other error.
type RefusedError struct{ Rows proxy.Refused }

// Error names every refused row.
func (e *RefusedError) Error() string {
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(e.Rows), proxy.ComparePortKeys) {
		all = append(all, fmt.Sprintf("%v: %v", k, e.Rows[k]))
	}
	return strings.Join(all, "; ")
}

// changed returns what a step changes.
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

// result combines what Sync and Apply return into one error.
func result(refused proxy.Refused, err error) error {
	if err == nil && len(refused) > 0 {
		return &RefusedError{refused}
	}
	return err
}

// Values returns the values of a dataplane's metric, by their labels.
func Values(ctx context.Context, d proxy.Measured, name string) map[string]float64 {
	values := map[string]float64{}
	for _, m := range d.Metrics(ctx) {
		if m.Name == name {
			m.Read(func(value float64, labels ...string) { values[strings.Join(labels, " ")] = value })
		}
	}
	return values
}
