package proxy

import "testing"

// TestHealthChecksWriteTheirPort checks that only changes of ports concern dataplanes.
func TestHealthChecksWriteTheirPort(t *testing.T) {
	d := &Delta{HealthChecks: []HealthCheckChange{{New: &HealthCheck{Key: HealthCheckKey{"ns", "web", IPv6}, Port: 30100, Local: 2}}}}
	if d.Empty() || !d.HealthChecks[0].ChangesPort() {
		t.Errorf("step %+v; want one that moves a port", d)
	}
	other := *d.HealthChecks[0].New
	other.Local = 3
	if more := (&Delta{HealthChecks: []HealthCheckChange{{Old: d.HealthChecks[0].New, New: &other}}}); more.Empty() || more.HealthChecks[0].ChangesPort() {
		t.Errorf("another endpoint: step %+v; want one that moves no port", more)
	}
	s := &State{}
	s.Apply(d)
	if got, want := s.HealthChecks[d.HealthChecks[0].Key()].String(), "ns/web/IPv6 port=30100 local=2"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	gone := &Delta{HealthChecks: []HealthCheckChange{{Old: d.HealthChecks[0].New}}}
	s.Apply(gone)
	if len(s.HealthChecks) != 0 {
		t.Errorf("health checks %v; want none", s.HealthChecks)
	}
}
