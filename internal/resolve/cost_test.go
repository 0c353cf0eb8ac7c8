package resolve

import (
	"fmt"
	"runtime"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// heapLimit is what the resolver may keep of 30,000 Services with 10 endpoints each.
const heapLimit = 150 << 20

// nthName and nthSlice make a cluster of any size.
func nthName(i int) string { return fmt.Sprintf("ns-%d/service-%d", i%100, i) }

func nthSlice(i, generation int) *discoveryv1.EndpointSlice {
	endpoints := make([]discoveryv1.Endpoint, 10)
	for j := range endpoints {
		// The last endpoint is another one in every generation.
		last := j
		if j == 9 {
			last += generation
		}
		endpoints[j] = endpointOf(fmt.Sprintf("10.%d.%d.%d", 128+i>>12, i>>4&255, i&15<<4+last), zones(fmt.Sprintf("zone-%d", j%3)))
		if j == 0 {
			here(&endpoints[j])
		}
	}
	return sliceOf(fmt.Sprintf("%s-abcde", nthName(i)), fmt.Sprintf("service-%d", i), endpoints...)
}

// clusterOf returns a resolver of n Services with 10 endpoints each. Objects
// are garbage as soon as they were handed over.
func clusterOf(t testing.TB, n int) *Resolver {
	r := New(Settings{NodeName: testNode})
	r.UpdateNode(nodeOf("zone-9", "192.168.0.1"))
	for i := range n {
		add(t, r, serviceOf(nthName(i), fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)), nthSlice(i, 0))
	}
	r.Update()
	return r
}

// replacer returns what replaces one endpoint of one Service, again and again.
func replacer(t testing.TB, r *Resolver, i int) func() {
	slices := []*discoveryv1.EndpointSlice{nthSlice(i, 1), nthSlice(i, 2)}
	turn := 0
	return func() {
		turn++
		r.Endpoints.Update(slices[turn%2], false)
		if d := r.Update(); len(d.Upserts) != 1 || len(d.Removes) != 0 {
			t.Fatalf("step of %d rows; want 1", len(d.Upserts)+len(d.Removes))
		}
	}
}

func TestHeap(t *testing.T) {
	if testing.Short() {
		t.Skip("30,000 Services take a moment; left out by -short")
	}
	before := heap()
	r := clusterOf(t, 30000)
	used := heap() - before
	if rows := len(r.State().Rows); rows != 30000 {
		t.Fatalf("%d rows; want 30000", rows)
	}
	t.Logf("heap of 30,000 Services with 10 endpoints each: %.1f MiB", float64(used)/(1<<20))
	if used > heapLimit {
		t.Errorf("heap %d bytes; want at most %d", used, heapLimit)
	}
	runtime.KeepAlive(r)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one finalised
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestUpdateAllocatesByChange resolves one changed slice among few Services and
// among many.
func TestUpdateAllocatesByChange(t *testing.T) {
	allocs := func(services int) float64 {
		r := clusterOf(t, services)
		return testing.AllocsPerRun(50, replacer(t, r, services/2))
	}
	few, many := allocs(100), allocs(5000)
	t.Logf("allocations: %.0f at 100 Services, %.0f at 5,000", few, many)
	if many > few+3 {
		t.Errorf("%.0f allocations at 5,000 Services, %.0f at 100; want the same", many, few)
	}
	if few > 100 {
		t.Errorf("%.0f allocations for one endpoint; want at most 100", few)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1000, 10000, 30000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			r := clusterOf(b, n)
			replace := replacer(b, r, n/2)
			b.ReportAllocs()
			for b.Loop() {
				replace()
			}
		})
	}
}
