package load

import (
	"net/netip"
	"testing"

	"sluice/test/cluster/peers/figures"
)

// TestPlan finds no address twice, and every one where it belongs.
func TestPlan(t *testing.T) {
	seen := map[netip.Addr]bool{}
	services := netip.MustParsePrefix("10.96.0.0/16")
	for i := range Data + 1 {
		ip := ClusterIP(i)
		if seen[ip] || !services.Contains(ip) {
			t.Fatalf("ClusterIP(%d): %v is not in %v, or is another's", i, ip, services)
		}
		seen[ip] = true
		for _, k := range []int{0, stride - 1} {
			e := Endpoint(i, k)
			if seen[e] || !Pods.Contains(e) || !Target(i).Has(e) || Target(i+1).Has(e) {
				t.Fatalf("Endpoint(%d, %d): %v is not in %v, or is another's", i, k, e, Pods)
			}
			seen[e] = true
		}
	}
}

// TestNewRefuses does not fill a server with more than there are addresses for.
func TestNewRefuses(t *testing.T) {
	for _, s := range []figures.Size{{Services: MaxServices + 1, Endpoints: 1}, {Services: 1, Endpoints: stride}} {
		if _, err := New(t.Context(), nil, s, false); err == nil {
			t.Errorf("New(%v): no error", s)
		}
	}
}
