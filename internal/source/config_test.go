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

// config is what all four Configs take.
type config[T any] interface {
	Add(T)
	Update(old, cur T)
	Delete(T)
	Synced()
}

// play sends every kind of event about objects that are wanted and that are
// not, and compares what two handlers hear of it.
func play[T any](t *testing.T, c config[T], handlers [2]*recorder, wanted, unwanted func(name string) T, filters bool) {
	t.Helper()
	a, b := wanted("a"), wanted("b")
	c.Add(a)
	c.Update(a, a)
	c.Update(a, b)
	if filters {
		x, y := unwanted("x"), unwanted("y")
		c.Add(x)
		c.Update(x, y)
		c.Update(b, x)
		c.Update(x, a)
		c.Delete(x)
	}
	c.Synced()
	c.Delete(a)
	c.Synced()
	want := []string{"add a", "update a b", "delete b", "add a", "synced", "delete a"}
	if !filters {
		want = slices.Delete(want, 2, 4)
	}
	for i, h := range handlers {
		if diff := cmp.Diff(want, h.events); diff != "" {
			t.Errorf("events of handler %d mismatch (-want +got):\n%s", i, diff)
		}
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
			c, handlers := source.NewServiceConfig(), [2]*recorder{{}, {}}
			c.RegisterEventHandler(handlers[0])
			c.RegisterEventHandler(handlers[1])
			play(t, c, handlers, named, unwanted, true)
		})
	}
}

func TestEndpointSliceConfig(t *testing.T) {
	named := func(name string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	c, handlers := source.NewEndpointSliceConfig(), [2]*recorder{{}, {}}
	c.RegisterEventHandler(handlers[0])
	c.RegisterEventHandler(handlers[1])
	play(t, c, handlers, named, func(name string) *discoveryv1.EndpointSlice {
		s := named(name)
		s.Labels = map[string]string{"service.kubernetes.io/headless": ""}
		return s
	}, true)
}

func TestNodeConfig(t *testing.T) {
	c, handler := source.NewNodeConfig("here"), &recorder{}
	c.RegisterEventHandler(handler)
	here := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	there := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	c.Add(there)
	c.Add(here)
	c.Update(here, here.DeepCopy())
	c.Delete(there)
	c.Synced()
	c.Delete(here)
	if diff := cmp.Diff([]string{"add here", "update here here", "synced", "delete here"}, handler.events); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
}

func TestServiceCIDRConfig(t *testing.T) {
	named := func(name string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	c, handlers := source.NewServiceCIDRConfig(), [2]*recorder{{}, {}}
	c.RegisterEventHandler(handlers[0])
	c.RegisterEventHandler(handlers[1])
	play(t, c, handlers, named, nil, false)
}
