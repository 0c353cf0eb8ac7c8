package ct_test

import (
	"fmt"
	"testing"

	"sluice/internal/kernel/ct"
)

// BenchmarkDump dumps flows and keeps none.
func BenchmarkDump(b *testing.B) {
	var flows []ct.Flow
	for i := range 5000 {
		flows = append(flows, flow(udp, fmt.Sprintf("10.1.%d.%d:4000", i>>8, i&255), "10.96.0.10:53", "10.1.0.2:5353"))
	}
	c := openInNamespace(b, flows)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Dump(b.Context(), ct.Filter{Protocol: udp}, func(*ct.Flow) bool { return false }); err != nil {
			b.Fatal(err)
		}
	}
}
