package ipvs

import (
	"fmt"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// BenchmarkApply replaces an endpoint in the kernel, beside more and more
// Services of ten, and tells how long the first Sync took and one that finds all
// as it should be.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			lab.Namespace(b)
			if k, err := ipvs.Open(); err != nil {
				b.Skip(err)
			} else if err := k.Close(); err != nil {
				b.Fatal(err)
			}
			d, err := Open(b.Context(), mode.Settings{MasqueradeBit: 14})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			var rows []*proxy.ServicePort
			for i := range n {
				rows = append(rows, service(i, proxy.TCP, tenEndpoints(1)...))
			}
			took := map[string]time.Duration{}
			for _, what := range []string{"first-sync-s", "next-sync-s"} {
				begun := time.Now()
				proxytest.MustSync(b, d, stateOf(rows...))
				took[what] = time.Since(begun)
			}
			old, cur := rows[50], service(50, proxy.TCP, tenEndpoints(2)...)
			for b.Loop() {
				proxytest.MustApply(b, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}})
				old, cur = cur, old
			}
			for what, t := range took {
				b.ReportMetric(t.Seconds(), what)
			}
		})
	}
}

// tenEndpoints returns addresses of which the first depends on a number.
func tenEndpoints(first int) []string {
	out := []string{fmt.Sprintf("10.2.0.%d:8080", first)}
	for i := range 9 {
		out = append(out, fmt.Sprintf("10.1.0.%d:8080", i+1))
	}
	return out
}
