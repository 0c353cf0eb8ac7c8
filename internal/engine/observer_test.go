package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// diary is an observer that writes down what it is told, between the writes of the dataplane.
type diary struct{ plane *fakePlane }

func (d diary) add(format string, args ...any) {
	d.plane.with(func(f *fakePlane) { f.calls = append(f.calls, fmt.Sprintf(format, args...)) })
}

func (d diary) Queued()    { d.add("queued") }
func (d diary) Repairing() { d.add("repairing") }

func (d diary) Began(c *proxy.Delta) { d.add("began +%d -%d", len(c.Upserts), len(c.Removes)) }

func (d diary) Done(_ context.Context, r Result) {
	if r.Err != nil {
		d.add("failed full=%t", r.Full)
		return
	}
	d.add("done full=%t +%d -%d", r.Full, len(r.Changed.Upserts), len(r.Changed.Removes))
	if r.Problems > 0 {
		d.add("problems %d", r.Problems)
	}
}

func (d diary) ServiceSeen(pending int) { d.add("service %d", pending) }
func (d diary) NodeSeen(n *v1.Node)     { d.add("node %t", n != nil) }

func (d diary) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	d.add("slice old=%t new=%t %d", old != nil, cur != nil, pending)
}

// TestObserver checks which calls an observer gets, and in which order: each write is announced
// before it begins, and its result told when it has ended.
func TestObserver(t *testing.T) {
	run(t, func(s *Settings) { s.Observer = diary{s.Dataplane.(*fakePlane)} }, func(l *lab) {
		l.start()
		synctest.Wait()
		all := l.plane.takeCalls()
		if n := len(all); n < 3 || !slices.Equal(all[n-3:], []string{"began +2 -0", "sync 2", "done full=true +2 -0"}) {
			t.Errorf("after the start: %q", all)
		}
		step := []string{"slice old=false new=true 1", "queued", "began +1 -0", "apply +1 -0", "done full=false +1 -0"}
		for _, c := range []struct {
			name  string
			event func()
			want  []string
		}{
			{"another endpoint", func() { l.change(1) }, step},
			{"the same one", func() { l.change(1) }, []string{"slice old=false new=true 0"}},
			{"none", func() { l.OnEndpointSliceDelete(endpoints("web", 1)) }, append([]string{"slice old=true new=false 1"}, step[1:]...)},
			{"a Node", func() { l.OnNodeAdd(&v1.Node{}); l.OnNodeDelete(nil) }, []string{"node true", "node false"}},
			{"a problem", func() {
				bad := endpoints("web", 1)
				bad.Endpoints[0].Addresses = []string{"nonsense"}
				l.OnEndpointSliceUpdate(bad, bad)
			}, []string{"slice old=true new=true 1", "queued", "began +0 -0", "done full=false +0 -0", "problems 1"}},
			{"its end", func() { l.change(1) }, step},
			{"drift", func() { l.plane.seen <- "row gone" }, []string{"repairing", "queued", "began +0 -0", "sync 2", "done full=true +0 -0"}},
			{"the kernel takes nothing", func() {
				l.plane.faults = []fault{nothing}
				l.change(2)
			}, append(append(step[:4:4], "failed full=false"), step[2:]...)},
			{"the kernel takes half", func() {
				l.plane.faults = []fault{halfWay}
				l.change(3)
			}, append(step[:4:4], "failed full=false", "began +1 -0", "sync 2", "done full=true +1 -0")},
			{"the kernel refuses all", func() {
				l.refuse("web", "busy")
				l.change(4)
			}, append(step[:4:4], "done full=false +0 -0", "began +1 -0", "apply +1 -0", "done full=false +0 -0")},
			{"a Service goes", func() {
				l.accept("web")
				l.OnServiceDelete(service("web", 2))
			}, []string{"service 1", "queued", "began +0 -1", "apply +0 -1", "done full=false +0 -1"}},
		} {
			c.event()
			time.Sleep(2*retryMin - ms)
			synctest.Wait()
			if diff := cmp.Diff(c.want, l.plane.takeCalls()); diff != "" {
				t.Errorf("%s: calls mismatch (-want +got):\n%s", c.name, diff)
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
