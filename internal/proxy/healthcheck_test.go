package proxy

import "testing"

// TestHealthChecksWriteNothing keeps dataplanes out of it.
func TestHealthChecksWriteNothing(t *testing.T) {
	d := &Delta{HealthChecks: []HealthCheckChange{{New: &HealthCheck{Key: HealthCheckKey{"ns", "web", IPv6}, Port: 30100, Local: 2}}}}
	if d.Empty() || d.Writes() {
		t.Errorf("empty %t, writes %t; want a step that writes nothing", d.Empty(), d.Writes())
	}
	if d.Then(&Delta{Node: &Node{}}).Writes() != true {
		t.Error("with a Node it writes nothing")
	}
	s := &State{}
	s.Apply(d)
	if got, want := s.HealthChecks[d.HealthChecks[0].Key()].String(), "ns/web/IPv6 port=30100 local=2"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	gone := &Delta{HealthChecks: []HealthCheckChange{{Old: d.HealthChecks[0].New}}}
	if both := d.Then(gone); !both.Empty() {
		t.Errorf("what came and went is %+v; want nothing", both)
	}
	s.Apply(gone)
	if len(s.HealthChecks) != 0 {
		t.Errorf("health checks %v; want none", s.HealthChecks)
	}
}
