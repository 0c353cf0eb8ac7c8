package source_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/source"
	"sluice/internal/source/sourcetest"
)

// named returns metadata of an object in one of its versions.
func named(name, version string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, ResourceVersion: version}
}

// play sends every kind of event about objects that are wanted and that are
// not, and compares what the handler hears of it. An object is wanted and here,
// unless it is other.
func play[T source.Object](t *testing.T, c *source.Config[T], h *sourcetest.Recorder, here string, wanted, other func(metav1.ObjectMeta) T) {
	t.Helper()
	kind, _, _ := strings.Cut(here, " ")
	want := []string{"+" + here, "~" + here, "synced " + kind, "-" + here}
	c.Set(wanted(named("here", "1")))
	c.Set(wanted(named("here", "1"))) // a resync
	c.Set(wanted(named("here", "2")))
	if other != nil {
		c.Set(other(named("there", "3")))
		c.Set(other(named("there", "4")))
		c.Forget(source.NameOf(other(named("there", "4"))))
	}
	c.Synced()
	c.Retain(map[types.NamespacedName]bool{{Name: "here"}: true})
	c.Forget(types.NamespacedName{Name: "here"})
	c.Forget(types.NamespacedName{Name: "here"})
	c.Synced()
	if other != nil && other(named("here", "")).GetName() == "here" {
		want = append(want, "+"+here, "-"+here, "+"+here, "-"+here)
		c.Set(wanted(named("here", "5")))
		c.Set(other(named("here", "6")))
		c.Set(wanted(named("here", "7")))
		c.Retain(nil)
	}
	h.Want(t, want...)
}

func TestServiceConfig(t *testing.T) {
	wanted := func(m metav1.ObjectMeta) *v1.Service {
		return &v1.Service{ObjectMeta: m, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	}
	for i, other := range []func(metav1.ObjectMeta) *v1.Service{
		func(m metav1.ObjectMeta) *v1.Service {
			s := wanted(m)
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
			return s
		},
		func(m metav1.ObjectMeta) *v1.Service {
			s := wanted(m)
			s.Spec.ClusterIP = v1.ClusterIPNone
			return s
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := &sourcetest.Recorder{}
			play(t, source.NewServiceConfig(h), h, "svc here 10.0.0.1", wanted, other)
		})
	}
}

func TestEndpointSliceConfig(t *testing.T) {
	h := &sourcetest.Recorder{}
	wanted := func(m metav1.ObjectMeta) *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{ObjectMeta: m} }
	play(t, source.NewEndpointSliceConfig(h), h, "slice here", wanted, func(m metav1.ObjectMeta) *discoveryv1.EndpointSlice {
		s := wanted(m)
		s.Labels = map[string]string{"service.kubernetes.io/headless": ""}
		return s
	})
}

func TestNodeConfig(t *testing.T) {
	h := &sourcetest.Recorder{}
	wanted := func(m metav1.ObjectMeta) *v1.Node { return &v1.Node{ObjectMeta: m} }
	play(t, source.NewNodeConfig("here", h), h, "node here", wanted, func(m metav1.ObjectMeta) *v1.Node {
		m.Name = "there"
		return wanted(m)
	})
}

func TestServiceCIDRConfig(t *testing.T) {
	h := &sourcetest.Recorder{}
	wanted := func(m metav1.ObjectMeta) *networkingv1.ServiceCIDR { return &networkingv1.ServiceCIDR{ObjectMeta: m} }
	play(t, source.NewServiceCIDRConfig(h), h, "cidr here []", wanted, nil)
}

// TestWithoutVersion passes on every event of an object without a version: whether it is a
// repetition is not known.
func TestWithoutVersion(t *testing.T) {
	h := &sourcetest.Recorder{}
	c := source.NewServiceConfig(h)
	c.Set(&v1.Service{ObjectMeta: named("here", "")})
	c.Set(&v1.Service{ObjectMeta: named("here", "")})
	h.Want(t, "+svc here ", "~svc here ")
}

// TestOldObjects checks what a handler may rely on of an object that changed.
func TestOldObjects(t *testing.T) {
	h := &oldSlices{}
	c := source.NewEndpointSliceConfig(h)
	for _, version := range []string{"1", "2"} {
		s := &discoveryv1.EndpointSlice{ObjectMeta: named("web-1", version)}
		s.Namespace = "shop"
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: "at " + version, "a": "b"}
		c.Set(s)
	}
	want := &discoveryv1.EndpointSlice{ObjectMeta: named("web-1", "1")}
	want.Namespace = "shop"
	want.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: "at 1"}
	if diff := cmp.Diff([]*discoveryv1.EndpointSlice{want}, h.old); diff != "" {
		t.Errorf("old object mismatch (-want +got):\n%s", diff)
	}
}

// oldSlices keeps what is known of slices that changed.
type oldSlices struct {
	sourcetest.Recorder
	old []*discoveryv1.EndpointSlice
}

func (o *oldSlices) OnEndpointSliceUpdate(old, _ *discoveryv1.EndpointSlice) {
	if old != nil {
		o.old = append(o.old, old)
	}
}
