package manifest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/internal/source"
)

// fullMeta is metadata with all that a cluster puts there.
func fullMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: "web", Namespace: "shop", UID: "1-2-3", ResourceVersion: "42", Generation: 7,
		CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)),
		DeletionTimestamp: new(metav1.NewTime(time.Unix(2000, 0))),
		Labels: map[string]string{
			"app": "web", discoveryv1.LabelServiceName: "web", v1.LabelTopologyZone: "z1",
			source.LabelHeadless: "", source.LabelServiceProxyName: "other",
		},
		Annotations:     map[string]string{"a": "b", v1.EndpointsLastChangeTriggerTime: "2024-01-01T00:00:00Z"},
		OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
		Finalizers:      []string{"f"},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}
}

// keptMeta is what all kinds keep of fullMeta.
func keptMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "1-2-3", ResourceVersion: "42"}
}

func TestTrimService(t *testing.T) {
	in := &v1.Service{
		ObjectMeta: fullMeta(),
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, IPFamilyPolicy: new(v1.IPFamilyPolicyRequireDualStack),
			Ports: []v1.ServicePort{{
				Name: "http", Protocol: v1.ProtocolTCP, Port: 80, NodePort: 30080,
				TargetPort: intstr.FromString("web"), AppProtocol: new("h2c"),
			}},
			Selector: map[string]string{"app": "web"}, ExternalIPs: []string{"192.0.2.1"}, LoadBalancerIP: "192.0.2.9",
			SessionAffinity:               v1.ServiceAffinityClientIP,
			SessionAffinityConfig:         &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: new(int32(60))}},
			LoadBalancerSourceRanges:      []string{"10.0.0.0/8"},
			ExternalTrafficPolicy:         v1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:         new(v1.ServiceInternalTrafficPolicyLocal),
			HealthCheckNodePort:           30000,
			AllocateLoadBalancerNodePorts: new(true), LoadBalancerClass: new("c"), TrafficDistribution: new("PreferSameZone"),
		},
		Status: v1.ServiceStatus{
			LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{
				{Hostname: "lb.example"},
				{IP: "192.0.2.2", IPMode: new(v1.LoadBalancerIPModeProxy), Ports: []v1.PortStatus{{Port: 80}}},
				{IP: "192.0.2.3"},
			}},
			Conditions: []metav1.Condition{{Type: "t"}},
		},
	}
	want := &v1.Service{
		ObjectMeta: keptMeta(),
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			IPFamilies:               []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			Ports:                    []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80, NodePort: 30080}},
			ExternalIPs:              []string{"192.0.2.1"},
			SessionAffinity:          v1.ServiceAffinityClientIP,
			SessionAffinityConfig:    in.Spec.SessionAffinityConfig,
			LoadBalancerSourceRanges: []string{"10.0.0.0/8"},
			ExternalTrafficPolicy:    v1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:    new(v1.ServiceInternalTrafficPolicyLocal),
			HealthCheckNodePort:      30000,
		},
	}
	want.CreationTimestamp = in.CreationTimestamp
	want.Labels = map[string]string{source.LabelHeadless: "", source.LabelServiceProxyName: "other"}
	want.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
		{IP: "192.0.2.2", IPMode: new(v1.LoadBalancerIPModeProxy)}, {IP: "192.0.2.3"},
	}
	checkTrim(t, newTrimmer().Service, in, want)
}

func TestTrimEndpointSlice(t *testing.T) {
	hints := func() *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "z1"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
		}
	}
	in := &discoveryv1.EndpointSlice{
		ObjectMeta: fullMeta(), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses:  []string{"10.1.0.1", "10.1.0.2"},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false), Terminating: new(true)},
				Hostname:   new("h"), TargetRef: &v1.ObjectReference{Name: "pod"}, NodeName: new("n1"), Zone: new("z1"),
				DeprecatedTopology: map[string]string{"a": "b"}, Hints: hints(),
			},
			{Addresses: []string{"10.1.0.3"}, NodeName: new("n1"), Hints: hints()},
			{},
		},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(80)), AppProtocol: new("h2c")},
			{Name: new(""), Protocol: new(v1.Protocol("ODD"))},
		},
	}
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: keptMeta(), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses:  []string{"10.1.0.1"},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false), Terminating: new(true)},
				NodeName:   new("n1"), Hints: hints(),
			},
			{Addresses: []string{"10.1.0.3"}, NodeName: new("n1"), Hints: hints()},
			{},
		},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(80))},
			{Name: new(""), Protocol: new(v1.Protocol("ODD"))},
		},
	}
	want.Labels = map[string]string{source.LabelHeadless: "", discoveryv1.LabelServiceName: "web"}
	want.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: "2024-01-01T00:00:00Z"}
	got := checkTrim(t, newTrimmer().EndpointSlice, in, want)

	a, b := &got.Endpoints[0], &got.Endpoints[1]
	if a.NodeName != b.NodeName || a.Hints != b.Hints {
		t.Error("two endpoints of one node do not share its name and their hints")
	}
	if cap(a.Addresses) != 1 {
		t.Errorf("the addresses of an endpoint have room for %d: appending would write into the next endpoint's", cap(a.Addresses))
	}
}

func TestTrimNodeAndServiceCIDR(t *testing.T) {
	node := &v1.Node{
		ObjectMeta: fullMeta(),
		Spec: v1.NodeSpec{
			PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}, ProviderID: "p", Unschedulable: true,
			Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: v1.TaintEffectNoSchedule}},
		},
		Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}},
			Images:    []v1.ContainerImage{{Names: []string{"i"}}}, NodeInfo: v1.NodeSystemInfo{MachineID: "m"},
		},
	}
	want := &v1.Node{ObjectMeta: keptMeta(), Spec: v1.NodeSpec{PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints}}
	want.Labels = map[string]string{v1.LabelTopologyZone: "z1"}
	want.DeletionTimestamp = node.DeletionTimestamp
	want.Status.Addresses = node.Status.Addresses
	checkTrim(t, newTrimmer().Node, node, want)

	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: fullMeta(), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
	checkTrim(t, newTrimmer().ServiceCIDR, cidr, &networkingv1.ServiceCIDR{ObjectMeta: keptMeta(), Spec: cidr.Spec})
}

// checkTrim checks the result, and that trimming twice changes nothing.
func checkTrim[T any](t *testing.T, trim func(*T) *T, in, want *T) *T {
	t.Helper()
	got := trim(in)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trimmed object mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, trim(got)); diff != "" {
		t.Errorf("trimming twice differs (-once +twice):\n%s", diff)
	}
	return got
}
