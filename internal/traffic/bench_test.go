package traffic

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"sluice/internal/proxy"
)

// many returns a Collector of many rows with ten endpoints, each with a connection.
func many(b *testing.B, rows int) *bench {
	s := newBench(nil, func(s *Settings) { s.LocalAddrs = func() ([]netip.Prefix, error) { return nil, nil } })
	s.has()
	for n := range rows {
		at := fmt.Sprintf("10.%d.%d.%d:80", 100+n>>16, n>>8&255, n&255)
		var endpoints []string
		for e := range 10 {
			endpoints = append(endpoints, fmt.Sprintf("10.%d.%d.%d:80", 200+e, n>>8&255, n&255))
		}
		s.has(servicePort(fmt.Sprint("web-", n), at, endpoints...))
		s.kernel.Add(flow(n, at, endpoints[n%10], 1000))
	}
	s.Refresh(b.Context())
	return s
}

// BenchmarkRefresh counts everything, except for the kernel's part, and reports how long a sync may
// have to wait for it.
func BenchmarkRefresh(b *testing.B) {
	s := many(b, 30_000)
	sp := servicePort("web-7", "10.100.0.7:80")
	step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: sp}}}
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				longest <- most
				return
			case <-tick.C:
				began := time.Now()
				s.Applied(s.index.node, step)
				most = max(most, time.Since(began))
			}
		}
	}()
	for b.Loop() {
		s.nextRead = time.Time{}
		s.Refresh(b.Context())
	}
	close(stop)
	b.ReportMetric(float64((<-longest).Microseconds()), "µs-longest-wait")
}

// BenchmarkScrape reads all series from a current snapshot.
func BenchmarkScrape(b *testing.B) {
	s := many(b, 30_000)
	s.nextRead = time.Now().Add(time.Hour)
	metrics := s.Metrics(b.Context())
	series := 0
	for b.Loop() {
		series = 0
		for _, m := range metrics {
			m.Read(func(float64, ...string) { series++ })
		}
	}
	b.ReportMetric(float64(series), "series")
}

// BenchmarkApplied applies one change among many rows with traffic.
func BenchmarkApplied(b *testing.B) {
	s := many(b, 30_000)
	sp := servicePort("web-7", "10.100.0.7:80", "10.1.0.1:80")
	step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: sp}}}
	for b.Loop() {
		s.Applied(s.index.node, step)
	}
}
