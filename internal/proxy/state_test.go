package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
)

// FuzzDelta takes steps one by one and composed, in both ways to compose three.
func FuzzDelta(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte("add, change, remove, add again, and the Node with it"))
	f.Add([]byte{1, 0, 2, 0, 1, 0, 0, 0, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		third := len(data) / 3
		start := NewState()
		start.Apply(fuzzDelta(start, []byte{1, 1, 1, 0}))
		s := clone(start)
		var steps []*Delta
		for _, part := range [][]byte{data[:third], data[third : 2*third], data[2*third:]} {
			d := fuzzDelta(s, part)
			s.Apply(d)
			steps = append(steps, d)
		}
		left := steps[0].Then(steps[1]).Then(steps[2])
		right := steps[0].Then(steps[1].Then(steps[2]))
		for name, d := range map[string]*Delta{"left": left, "right": right} {
			checkDelta(t, start, d)
			got := clone(start)
			got.Apply(d)
			if err := sameState(s, got); err != nil {
				t.Errorf("%s composition: %v", name, err)
			}
		}
		if describeDelta(left) != describeDelta(right) {
			t.Errorf("compositions differ:\n%s\n%s", describeDelta(left), describeDelta(right))
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

// describeDelta prints a step, rows by their identity in memory.
func describeDelta(d *Delta) string {
	var out []string
	for _, u := range d.Upserts {
		out = append(out, fmt.Sprintf("%v %p -> %p", u.New.Key, u.Old, u.New))
	}
	for _, r := range d.Removes {
		out = append(out, fmt.Sprintf("%v %p removed", r.Key, r))
	}
	for _, c := range d.HealthChecks {
		out = append(out, fmt.Sprintf("check %v %p -> %p", c.Key(), c.Old, c.New))
	}
	slices.Sort(out)
	return fmt.Sprintf("%v %p %p", out, d.Node, d.CIDRs)
}

// TestThen composes two steps of one row.
func TestThen(t *testing.T) {
	row := func() *ServicePort { return &ServicePort{Key: PortKey{ServicePortName: ServicePortName{Name: "web"}}} }
	a, b, c := row(), row(), row()
	tests := []struct {
		name        string
		first, next *Delta
		want        *Delta
	}{
		{"nothing", &Delta{}, &Delta{}, &Delta{}},
		{"added, changed", &Delta{Upserts: []Upsert{{nil, a}}}, &Delta{Upserts: []Upsert{{a, b}}}, &Delta{Upserts: []Upsert{{nil, b}}}},
		{"changed, changed", &Delta{Upserts: []Upsert{{a, b}}}, &Delta{Upserts: []Upsert{{b, c}}}, &Delta{Upserts: []Upsert{{a, c}}}},
		{"added, removed", &Delta{Upserts: []Upsert{{nil, a}}}, &Delta{Removes: []*ServicePort{a}}, &Delta{}},
		{"changed, removed", &Delta{Upserts: []Upsert{{a, b}}}, &Delta{Removes: []*ServicePort{b}}, &Delta{Removes: []*ServicePort{a}}},
		{"removed, added", &Delta{Removes: []*ServicePort{a}}, &Delta{Upserts: []Upsert{{nil, b}}}, &Delta{Upserts: []Upsert{{a, b}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.first.Then(tt.next)
			if describeDelta(got) != describeDelta(tt.want) {
				t.Errorf("step %s; want %s", describeDelta(got), describeDelta(tt.want))
			}
			if want := len(tt.want.Upserts)+len(tt.want.Removes) == 0; got.Empty() != want {
				t.Errorf("empty %t; want %t", got.Empty(), want)
			}
		})
	}
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

// TestRefusedError names rows in order.
func TestRefusedError(t *testing.T) {
	err := &RefusedError{Rows: map[PortKey]error{
		{ServicePortName{"b", "x", "http", TCP}, IPv4}: errors.New("no space"),
		{ServicePortName{"a", "y", "", UDP}, IPv6}:     errors.New("busy"),
	}}
	const want = "a/y/UDP/IPv6: busy; b/x:http/TCP/IPv4: no space"
	if err.Error() != want {
		t.Errorf("%q; want %q", err.Error(), want)
	}
}
