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

func TestFits(t *testing.T) {
	ten := figures.Size{Services: 10, Endpoints: 10}
	tests := []struct {
		name     string
		from, to figures.Size
		want     bool
	}{
		{"from nothing", figures.Size{}, ten, true},
		{"more Services", ten, figures.Size{Services: 1000, Endpoints: 10}, true},
		{"fewer Services", figures.Size{Services: 1000, Endpoints: 10}, ten, false},
		{"other endpoints", ten, figures.Size{Services: 1000, Endpoints: 4}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&Load{Size: tt.from}).Fits(tt.to); got != tt.want {
				t.Errorf("Fits: got %v, want %v", got, tt.want)
			}
		})
	}
}
