package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrim(t *testing.T) {
	full := metav1.ObjectMeta{
		Name: "web", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		Annotations: map[string]string{
			"a": "b", v1.EndpointsLastChangeTriggerTime: "2024-01-01T00:00:00Z",
			"sluice.dev/load-balancing": "random", "sluice.dev/weight": "2", "sluice.dev/other": "",
		},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}
	kept := *full.DeepCopy()
	kept.ManagedFields = nil
	delete(kept.Annotations, "a")
	delete(kept.Annotations, "sluice.dev/other")
	plain := *kept.DeepCopy()
	plain.Annotations = nil
	spec := v1.NodeSpec{PodCIDR: "10.1.0.0/24", Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}}
	addresses := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}
	for _, tt := range []struct {
		name      string
		obj, want metav1.Object
	}{
		{"EndpointSlice", &discoveryv1.EndpointSlice{ObjectMeta: full}, &discoveryv1.EndpointSlice{ObjectMeta: kept}},
		{"no annotation", &v1.Service{ObjectMeta: plain}, &v1.Service{ObjectMeta: plain}},
		{
			"Node", &v1.Node{ObjectMeta: full, Spec: spec, Status: v1.NodeStatus{
				Addresses: addresses, Images: []v1.ContainerImage{{Names: []string{"i"}}}, NodeInfo: v1.NodeSystemInfo{MachineID: "m"},
			}},
			&v1.Node{ObjectMeta: kept, Spec: spec, Status: v1.NodeStatus{Addresses: addresses}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			trim(tt.obj)
			if diff := cmp.Diff(tt.want, tt.obj); diff != "" {
				t.Errorf("trimmed object mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
