package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
)

// FuzzChanged takes steps one by one, and all at once by the keys that changed.
func FuzzChanged(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte("add, change, remove, add again, and the Node with it"))
	f.Add([]byte{1, 0, 2, 0, 1, 0, 0, 0, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		start := NewState()
		start.Apply(fuzzDelta(start, []byte{1, 1, 1, 0}))
		want := clone(start)
		rows, checks := map[PortKey]bool{}, map[HealthCheckKey]bool{}
		all := &Changed{}
		for part := range slices.Chunk(data, max(1, len(data)/3)) {
			d := fuzzDelta(want, part)
			want.Apply(d)
			for _, r := range d.Removes {
				rows[r.Key] = true
			}
			for _, u := range d.Upserts {
				rows[u.New.Key] = true
			}
			for _, c := range d.HealthChecks {
				checks[c.Key()] = true
			}
			all.Node, all.CIDRs = all.Node || d.Node != nil, all.CIDRs || d.CIDRs != nil
		}
		all.Rows = slices.SortedFunc(maps.Keys(rows), ComparePortKeys)
		all.HealthChecks = slices.SortedFunc(maps.Keys(checks), CompareHealthCheckKeys)
		d := all.Delta(want, func(k PortKey) *ServicePort { return start.Rows[k] },
			func(k HealthCheckKey) *HealthCheck { return start.HealthChecks[k] })
		checkDelta(t, start, d)
		got := clone(start)
		got.Apply(d)
		if err := sameState(want, got); err != nil {
			t.Error(err)
		}
		if same := all.Delta(want, func(k PortKey) *ServicePort { return want.Rows[k] },
			func(k HealthCheckKey) *HealthCheck { return want.HealthChecks[k] }); len(same.Upserts)+len(same.Removes)+len(same.HealthChecks) > 0 {
			t.Errorf("step from what is wanted: %+v", same)
		}
	})
}

// fuzzDelta makes a step from a state, one action for each byte.
func fuzzDelta(s *State, actions []byte) *Delta {
	d := &Delta{}
	touched := map[PortKey]bool{}
	for i, b := range actions {
		key := PortKey{ServicePortName: ServicePortName{Namespace: "ns", Name: fmt.Sprint(i % 4)}}
		fuzzHealthCheck(s, d, b)
		old := s.Rows[key]
		switch {
		case b%5 == 3:
			d.Node = &Node{Name: fmt.Sprint(b)}
		case b%5 == 4:
			d.CIDRs = &[]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{b}), 8)}
		case touched[key] || b%5 == 0:
		case b%5 == 1:
			d.Upserts = append(d.Upserts, Upsert{Old: old, New: &ServicePort{Key: key}})
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
func fuzzHealthCheck(s *State, d *Delta, b byte) {
	key := HealthCheckKey{Name: fmt.Sprint(b >> 6)}
	change := HealthCheckChange{Old: s.HealthChecks[key]}
	if b&32 != 0 {
		change.New = &HealthCheck{Key: key, Local: int(b)}
	}
	touched := slices.ContainsFunc(d.HealthChecks, func(c HealthCheckChange) bool { return c.Key() == key })
	if !touched && (change.Old != nil || change.New != nil) {
		d.HealthChecks = append(d.HealthChecks, change)
	}
}

// checkDelta fails unless the step's old rows are a state's.
func checkDelta(t *testing.T, s *State, d *Delta) {
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

func clone(s *State) *State {
	return &State{Rows: maps.Clone(s.Rows), Node: s.Node, CIDRs: s.CIDRs, HealthChecks: maps.Clone(s.HealthChecks)}
}

func sameState(want, got *State) error {
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

func TestOutermost(t *testing.T) {
	tests := []struct{ in, want []string }{
		{nil, nil},
		{[]string{"10.0.0.0/8"}, []string{"10.0.0.0/8"}},
		{[]string{"10.1.0.0/16", "10.0.0.0/8", "10.2.3.4/32"}, []string{"10.0.0.0/8"}},
		{[]string{"10.1.2.3/16", "10.1.0.0/16"}, []string{"10.1.0.0/16"}},
		{[]string{"fd00::/64", "10.0.0.0/9", "10.128.0.0/9"}, []string{"10.0.0.0/9", "10.128.0.0/9", "fd00::/64"}},
		{[]string{"::/0", "0.0.0.0/0", "10.0.0.0/8", "fd00::/8"}, []string{"0.0.0.0/0", "::/0"}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.in), func(t *testing.T) {
			var in []netip.Prefix
			for _, s := range tt.in {
				in = append(in, netip.MustParsePrefix(s))
			}
			var got []string
			for _, p := range Outermost(in) {
				got = append(got, p.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v; want %v", got, tt.want)
			}
		})
	}
}
