package source_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/source"
)

// recorder writes down what it is told, one line a call.
type recorder struct{ events []string }

func (r *recorder) log(what string, objects ...metav1.Object) {
	for _, o := range objects {
		what += " " + o.GetName()
	}
	r.events = append(r.events, what)
}

func (r *recorder) OnServiceAdd(s *v1.Service)           { r.log("add", s) }
func (r *recorder) OnServiceUpdate(old, cur *v1.Service) { r.log("update", old, cur) }
func (r *recorder) OnServiceDelete(s *v1.Service)        { r.log("delete", s) }
func (r *recorder) OnServiceSynced()                     { r.log("synced") }

func (r *recorder) OnEndpointSliceAdd(s *discoveryv1.EndpointSlice) { r.log("add", s) }
func (r *recorder) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	r.log("update", old, cur)
}
func (r *recorder) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice) { r.log("delete", s) }
func (r *recorder) OnEndpointSlicesSynced()                            { r.log("synced") }

func (r *recorder) OnNodeAdd(n *v1.Node)           { r.log("add", n) }
func (r *recorder) OnNodeUpdate(old, cur *v1.Node) { r.log("update", old, cur) }
func (r *recorder) OnNodeDelete(n *v1.Node)        { r.log("delete", n) }
func (r *recorder) OnNodeSynced()                  { r.log("synced") }

func (r *recorder) OnServiceCIDRAdd(c *networkingv1.ServiceCIDR)           { r.log("add", c) }
func (r *recorder) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) { r.log("update", old, cur) }
func (r *recorder) OnServiceCIDRDelete(c *networkingv1.ServiceCIDR)        { r.log("delete", c) }
func (r *recorder) OnServiceCIDRsSynced()                                  { r.log("synced") }

var _ source.Handler = (*recorder)(nil)

// play sends every kind of event about objects that are wanted and that are
// not, and compares what the handler hears of it.
func play[T any](t *testing.T, c *source.Config[T], h *recorder, wanted, unwanted func(name string) T, filters bool) {
	t.Helper()
	var none T
	a, b := wanted("a"), wanted("b")
	known := c.Set(false, none, a)
	known = c.Set(known, a, b)
	if filters {
		x, y := unwanted("x"), unwanted("y")
		if c.Set(false, none, x) || c.Set(false, x, y) {
			t.Error("an unwanted object counts as known")
		}
		known = c.Set(known, b, x)
		known = c.Set(known, x, a)
	}
	if !known {
		t.Error("a wanted object does not count as known")
	}
	c.Synced()
	c.Forget(a)
	c.Synced()
	want := []string{"add a", "update a b", "delete b", "add a", "synced", "delete a"}
	if !filters {
		want = slices.Delete(want, 2, 4)
	}
	if diff := cmp.Diff(want, h.events); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
}

func TestServiceConfig(t *testing.T) {
	named := func(name string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	}
	for i, unwanted := range []func(string) *v1.Service{
		func(name string) *v1.Service {
			s := named(name)
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
			return s
		},
		func(name string) *v1.Service {
			s := named(name)
			s.Spec.ClusterIP = v1.ClusterIPNone
			return s
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := &recorder{}
			play(t, source.NewServiceConfig(h), h, named, unwanted, true)
		})
	}
}

func TestEndpointSliceConfig(t *testing.T) {
	named := func(name string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	h := &recorder{}
	play(t, source.NewEndpointSliceConfig(h), h, named, func(name string) *discoveryv1.EndpointSlice {
		s := named(name)
		s.Labels = map[string]string{"service.kubernetes.io/headless": ""}
		return s
	}, true)
}

func TestNodeConfig(t *testing.T) {
	h := &recorder{}
	named := func(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	here, there := named("here"), named("there")
	c := source.NewNodeConfig("here", h)
	if c.Set(false, nil, there) || !c.Set(false, nil, here) || !c.Set(true, here, here) {
		t.Error("the handler must know the Node of this name and no other")
	}
	c.Synced()
	c.Forget(here)
	if diff := cmp.Diff([]string{"add here", "update here here", "synced", "delete here"}, h.events); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
}

func TestServiceCIDRConfig(t *testing.T) {
	named := func(name string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	h := &recorder{}
	play(t, source.NewServiceCIDRConfig(h), h, named, nil, false)
}
