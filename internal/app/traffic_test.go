package app

import (
	"testing"

	"sluice/internal/kernel/sysctl/sysctltest"
)

// TestTrackingMetrics tells how full the kernel's table is, and nothing where
// there is none.
func TestTrackingMetrics(t *testing.T) {
	values := func(settings map[string]string) map[string]float64 {
		got := map[string]float64{}
		for _, m := range trackingMetrics(sysctltest.NewFake(settings)) {
			m.Read(func(v float64, _ ...string) { got[m.Name] = v })
		}
		return got
	}
	got := values(map[string]string{"net/netfilter/nf_conntrack_count": "12", "net/netfilter/nf_conntrack_max": "262144"})
	if len(got) != 2 || got["conntrack_entries"] != 12 || got["conntrack_entries_limit"] != 262144 {
		t.Errorf("metrics %v", got)
	}
	if got := values(nil); len(got) != 0 {
		t.Errorf("metrics %v without connection tracking", got)
	}
}
