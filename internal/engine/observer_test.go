package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// diary is an observer that writes down what it is told.
type diary struct{ lines []string }

func (d *diary) Queued()            { d.lines = append(d.lines, "queued") }
func (d *diary) Repairing()         { d.lines = append(d.lines, "repairing") }
func (d *diary) Began(*proxy.Delta) { d.lines = append(d.lines, "began") }
func (d *diary) Done(_ context.Context, r Result) {
	d.lines = append(d.lines, fmt.Sprintf("done full=%t ok=%t", r.Full, r.Err == nil))
	if r.Problems > 0 {
		d.lines = append(d.lines, fmt.Sprintf("problems %d", r.Problems))
	}
}

func (d *diary) ServiceSeen(pending int) {
	d.lines = append(d.lines, fmt.Sprintf("service %d", pending))
}

func (d *diary) NodeSeen(n *v1.Node) {
	d.lines = append(d.lines, fmt.Sprintf("node %t", n != nil))
}

func (d *diary) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	d.lines = append(d.lines, fmt.Sprintf("slice old=%t new=%t %d", old != nil, cur != nil, pending))
}

// TestObserver checks which calls an observer gets, and in which order.
func TestObserver(t *testing.T) {
	d := &diary{}
	run(t, func(s *Settings) { s.Observer = d }, func(l *lab) {
		l.start()
		synctest.Wait()
		if n := len(d.lines); n < 3 || d.lines[n-2] != "began" || d.lines[n-1] != "done full=true ok=true" {
			t.Errorf("after the start: %q", d.lines)
		}
		for _, c := range []struct {
			event func()
			want  []string
		}{
			{
				func() { l.OnEndpointSliceUpdate(endpoints("web", 1), endpoints("web", 2)) },
				[]string{"slice old=true new=true 1", "queued", "began", "done full=false ok=true"},
			},
			{
				func() { l.OnEndpointSliceUpdate(endpoints("web", 2), endpoints("web", 2)) },
				[]string{"slice old=true new=true 0"},
			},
			{
				func() { l.OnEndpointSliceDelete(endpoints("web", 2)) },
				[]string{"slice old=true new=false 1", "queued", "began", "done full=false ok=true"},
			},
			{
				func() { l.OnNodeAdd(&v1.Node{}); l.OnNodeDelete(nil) },
				[]string{"node true", "node false"},
			},
			{
				func() {
					bad := endpoints("web", 1)
					bad.Endpoints[0].Addresses = []string{"nonsense"}
					l.OnEndpointSliceAdd(bad)
				},
				[]string{"slice old=false new=true 1", "queued", "began", "done full=false ok=true", "problems 1"},
			},
			{
				func() { l.OnEndpointSliceDelete(endpoints("web", 1)) },
				[]string{"slice old=true new=false 1", "queued", "began", "done full=false ok=true"},
			},
			{
				func() { l.plane.seen <- "row gone" },
				[]string{"repairing", "queued", "began", "done full=true ok=true"},
			},
			{
				func() { l.plane.faults = []fault{nothing}; l.OnServiceDelete(service("web", 2)) },
				[]string{"service 1", "queued", "began", "done full=false ok=false"},
			},
		} {
			d.lines = nil
			c.event()
			synctest.Wait()
			if !slices.Equal(d.lines, c.want) {
				t.Errorf("told %q, want %q", d.lines, c.want)
			}
		}
	})
}

// TestConfigure changes the settings while the engine runs.
func TestConfigure(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.start()
		synctest.Wait()
		l.wantCalls("sync 2")
		l.Configure(resolve.Settings{
			MasqueradeAll: true,
			LocalPods:     proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		}, time.Second, 10*time.Minute)
		synctest.Wait()
		if n := l.plane.kernel.Node; !n.MasqueradeAll || n.Name != "here" || len(n.LocalPods.Sources) != 1 {
			t.Errorf("the kernel's node is %+v", n)
		}
		l.wantCalls("apply +0 -0")
		time.Sleep(11 * time.Minute) // The new period holds from the next run on.
		l.wantCalls("sync 2")
	})
}
