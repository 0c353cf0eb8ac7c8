package engine

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/proxy"
)

// FuzzChanged compares applying steps one by one with applying at once what the table
// says has changed.
func FuzzChanged(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte("add, change, remove, add again, and the proxy.Node with it"))
	f.Add([]byte{1, 0, 2, 0, 1, 0, 0, 0, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		start := proxy.NewState()
		start.Apply(fuzzDelta(start, []byte{1, 1, 1, 0}))
		want := clone(start)
		tab := newTable(want)
		for part := range slices.Chunk(data, max(1, len(data)/3)) {
			d := fuzzDelta(want, part)
			want.Apply(d)
			tab.markChanged(d, time.Now())
		}
		w := &work{state: want}
		w.changed, w.step = tab.due(true, time.Now())
		checkDelta(t, start, w.step)
		got := clone(start)
		got.Apply(w.step)
		if err := sameState(want, got); err != nil {
			t.Error(err)
		}
		tab.recordSync(w, nil, time.Now())
		if changed, step := tab.due(true, time.Now()); !changed.Empty() || !step.Empty() {
			t.Errorf("step from what is wanted: %+v", step)
		}
	})
}

// fuzzDelta makes a step from a state, one action for each byte.
func fuzzDelta(s *proxy.State, actions []byte) *proxy.Delta {
	d := &proxy.Delta{}
	touched := map[proxy.PortKey]bool{}
	for i, b := range actions {
		key := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: fmt.Sprint(i % 4)}}
		fuzzHealthCheck(s, d, b)
		old := s.Rows[key]
		switch {
		case b%5 == 3:
			d.Node = &proxy.Node{Name: fmt.Sprint(b)}
		case b%5 == 4:
			d.CIDRs = &[]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{b}), 8)}
		case touched[key] || b%5 == 0:
		case b%5 == 1:
			d.Upserts = append(d.Upserts, proxy.Upsert{Old: old, New: &proxy.ServicePort{Key: key}})
			touched[key] = true
		case old != nil:
			d.Removes = append(d.Removes, old)
			touched[key] = true
		}
	}
	return d
}

// fuzzHealthCheck adds to a step what the upper bits of an action say about a
// health check that the step does not change yet.
func fuzzHealthCheck(s *proxy.State, d *proxy.Delta, b byte) {
	key := proxy.HealthCheckKey{Name: fmt.Sprint(b >> 6)}
	change := proxy.HealthCheckChange{Old: s.HealthChecks[key]}
	if b&32 != 0 {
		change.New = &proxy.HealthCheck{Key: key, Local: int(b)}
	}
	touched := slices.ContainsFunc(d.HealthChecks, func(c proxy.HealthCheckChange) bool { return c.Key() == key })
	if !touched && (change.Old != nil || change.New != nil) {
		d.HealthChecks = append(d.HealthChecks, change)
	}
}

// checkDelta fails unless the step's old rows are a state's.
func checkDelta(t *testing.T, s *proxy.State, d *proxy.Delta) {
	t.Helper()
	for _, u := range d.Upserts {
		if s.Rows[u.New.Key] != u.Old {
			t.Errorf("old row of %v is not the state's", u.New.Key)
		}
	}
	for _, r := range d.Removes {
		if s.Rows[r.Key] != r {
			t.Errorf("removed row %v is not the state's", r.Key)
		}
	}
	for _, c := range d.HealthChecks {
		if s.HealthChecks[c.Key()] != c.Old {
			t.Errorf("old health check of %v is not the state's", c.Key())
		}
	}
}

func clone(s *proxy.State) *proxy.State {
	return &proxy.State{Rows: maps.Clone(s.Rows), Node: s.Node, CIDRs: s.CIDRs, HealthChecks: maps.Clone(s.HealthChecks)}
}

func sameState(want, got *proxy.State) error {
	switch {
	case !maps.Equal(want.Rows, got.Rows):
		return fmt.Errorf("rows\n%vwant\n%v", got, want)
	case want.Node != got.Node:
		return fmt.Errorf("node %v; want %v", got.Node, want.Node)
	case !slices.Equal(want.CIDRs, got.CIDRs):
		return fmt.Errorf("ranges %v; want %v", got.CIDRs, want.CIDRs)
	case !maps.Equal(want.HealthChecks, got.HealthChecks):
		return fmt.Errorf("health checks %v; want %v", got.HealthChecks, want.HealthChecks)
	}
	return nil
}
