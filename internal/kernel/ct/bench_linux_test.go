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

// BenchmarkEach goes through translated flows.
func BenchmarkEach(b *testing.B) {
	c := openInNamespace(b, nil)
	const flows = 5000
	for i := range flows {
		f := toService(udp, fmt.Sprintf("10.1.%d.%d:4000", i>>8, i&255), "10.96.0.10:53", "10.1.0.2:5353")
		if err := c.Translate(&f); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Each(b.Context(), func() {}, func(*ct.Flow) {}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/flows, "ns/flow")
}
