package resolve

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/conformance/reliability"
	"sluice/internal/proxy"
)

// wide is a Service with many ports, and slices with endpoints for all of them.
type wide struct{ ports, slices, each int }

func (w wide) service() *v1.Service {
	s := serviceOf("ns/wide", "10.96.0.1")
	s.Spec.Ports = nil
	for p := range w.ports {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(p + 1), Protocol: v1.ProtocolTCP})
	}
	return s
}

// slice is the nth slice. Its last endpoint is another one in every generation.
func (w wide) slice(n, generation int) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for e := range w.each {
		if e == w.each-1 {
			e += generation
		}
		endpoints = append(endpoints, endpointOf(fmt.Sprintf("10.%d.%d.%d", 1+n, e>>8, e&255)))
	}
	s := sliceOf(fmt.Sprintf("ns/wide-%03d", n), "wide", endpoints...)
	s.Ports = nil
	for p := range w.ports {
		s.Ports = append(s.Ports, slicePortOf(fmt.Sprint("p", p), int32(10_000+p)))
	}
	return s
}

// flap returns what one endpoint that is replaced allocates, and how long that takes.
func (w wide) flap(t *testing.T) (bytes float64, took time.Duration) {
	r := New(Settings{NodeName: testNode})
	add(t, r, w.service())
	for n := range w.slices {
		add(t, r, w.slice(n, 0))
	}
	r.Update()
	const rounds = 3
	began := time.Now()
	generation := 0
	bytes = bytesPerRun(rounds, func() {
		generation++
		r.Endpoints.Update(w.slice(w.slices/2, generation), false)
		if d := r.Update(); len(d.Upserts) != w.ports {
			t.Fatalf("%d rows changed; want %d", len(d.Upserts), w.ports)
		}
	})
	return bytes, time.Since(began) / rounds
}

// TestCostOfAWideService replaces one endpoint of a Service with as many ports and
// endpoints as anybody has: it costs the rows that change, and no more for each than its list.
func TestCostOfAWideService(t *testing.T) {
	sizes := []wide{{50, 10, 100}, {200, 10, 100}}
	if !testing.Short() {
		sizes = append(sizes, wide{1000, 50, 100})
	}
	for _, w := range sizes {
		bytes, took := w.flap(t)
		pairs := w.ports * w.slices * w.each
		if most := 1.3 * float64(unsafe.Sizeof(proxy.Endpoint{})) * float64(pairs); bytes > most {
			t.Errorf("%+v: %.0f bytes are allocated; want at most %.0f", w, bytes, most)
		}
		if pairs == 5_000_000 {
			reliability.Record(t, reliability.Result{
				Fault: "one endpoint of a Service with 1,000 ports and 5,000 endpoints flaps", Mode: "any", Tried: 3,
				Note: fmt.Sprintf("resolved in %v, %.0f MB allocated", took.Round(time.Millisecond), bytes/1e6),
			})
		}
	}
}
