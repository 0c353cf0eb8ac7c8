package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// TestProblemsCostNothingWhileTheyStay changes one endpoint, with and without other
// slices that have problems.
func TestProblemsCostNothingWhileTheyStay(t *testing.T) {
	const many = 10_000
	beside, alone := allocsOfAChange(t, many), allocsOfAChange(t, 0)
	t.Logf("allocations for one endpoint: %.0f beside %d problems, %.0f beside none", beside, many, alone)
	if beside > alone+3 {
		t.Errorf("%.0f allocations beside %d problems, %.0f beside none; want the same", beside, many, alone)
	}
}

// allocsOfAChange returns what one replaced endpoint allocates, from the event
// to the end of the run.
func allocsOfAChange(t *testing.T, problems int) float64 {
	e := New(Settings{Observer: nobody{}, Dataplane: idlePlane{}, Resolver: resolve.New(resolve.Settings{NodeName: "here"})})
	e.nextRun = time.AfterFunc(time.Hour, func() {})
	defer e.nextRun.Stop()
	e.OnServiceUpdate(nil, service("web", 1))
	for i := range problems {
		bad := endpoints(fmt.Sprintf("bad-%d", i), 1)
		bad.Endpoints[0].Addresses = []string{"10.244.0.300"}
		e.OnEndpointSliceUpdate(nil, bad)
	}
	e.OnNodeSynced()
	e.OnServiceSynced()
	e.OnEndpointSlicesSynced()
	ctx := klog.NewContext(t.Context(), klog.Logger{}) // The problems need not be read.
	n := 0
	return testing.AllocsPerRun(20, func() {
		n++
		e.OnEndpointSliceUpdate(nil, endpoints("web", 1+n%2))
		if err := e.run(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// idlePlane takes everything.
type idlePlane struct{}

func (idlePlane) Sync(context.Context, *proxy.State) (proxy.Refused, error) { return nil, nil }
func (idlePlane) Apply(context.Context, *proxy.State, *proxy.Changed) (proxy.Refused, error) {
	return nil, nil
}
func (idlePlane) Close() error { return nil }
