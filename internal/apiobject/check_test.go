package apiobject_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/apiobject"
)

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "shop"} }

// service returns a Service with nothing wrong, changed by edit.
func service(edit func(*v1.Service)) *v1.Service {
	s := &v1.Service{ObjectMeta: meta("web"), Spec: v1.ServiceSpec{
		ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Ports: []v1.ServicePort{{Name: "http", Port: 80}},
	}}
	edit(s)
	return s
}

func slice(edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta("web-1"), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}
	edit(s)
	return s
}

// TestStored compares what is wrong with objects that an API server has
// accepted, maybe long ago, with what is wrong with the same objects when they are
// new.
func TestStored(t *testing.T) {
	for _, tt := range []struct {
		name        string
		obj         metav1.Object
		stored, new []string
	}{
		{"nothing wrong", service(func(*v1.Service) {}), nil, nil},
		{
			"leading zeros", service(func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "010.0.0.1", nil }), nil,
			[]string{`spec.clusterIP: "010.0.0.1" has leading zeros; write 10.0.0.1`},
		},
		{
			"mapped address", service(func(s *v1.Service) { s.Spec.ExternalIPs = []string{"::ffff:192.0.2.1"} }), nil,
			[]string{"spec.externalIPs[0]: ::ffff:192.0.2.1 is an IPv4-mapped IPv6 address; write 192.0.2.1; it is left out"},
		},
		{
			"range with leading zeros", service(func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"010.0.0.0/08"} }), nil,
			[]string{`spec.loadBalancerSourceRanges[0]: "010.0.0.0/08" has leading zeros; write 10.0.0.0/8`},
		},
		{
			"one name for two protocols", service(func(s *v1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "http", Port: 80, Protocol: v1.ProtocolUDP})
			}), nil,
			[]string{`spec.ports[1].name: "http" is the name of spec.ports[0] too`},
		},
		{
			"no ports", service(func(s *v1.Service) { s.Spec.Ports = nil }), nil,
			[]string{"spec.ports: is empty: nothing is forwarded"},
		},
		{
			"unknown words", service(func(s *v1.Service) {
				s.Spec.Type, s.Spec.SessionAffinity = "Magic", "Cookie"
				s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicy("Near")), "Far"
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: new(v1.LoadBalancerIPMode("Odd"))}}
			}),
			words, words,
		},
		{
			"ways to choose", annotated(service(func(*v1.Service) {}), apiobject.LoadBalancing, "round-robin"), nil, nil,
		},
		{
			"unknown way to choose", annotated(service(func(*v1.Service) {}), apiobject.LoadBalancing, "rr"), noWay, noWay,
		},
		{
			"weight", annotated(slice(func(*discoveryv1.EndpointSlice) {}), apiobject.Weight, "65535"), nil, nil,
		},
		{
			"no weight", annotated(slice(func(*discoveryv1.EndpointSlice) {}), apiobject.Weight, "0"), noWeight, noWeight,
		},
		{
			"names", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "N1", Namespace: "A.B"}}, nil,
			[]string{
				`metadata.name: "N1" is not a valid name: use lower case letters, digits, - and .`,
				`metadata.namespace: "A.B" is not a valid namespace: use lower case letters, digits and -`,
			},
		},
		{
			"no address type", slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }),
			[]string{"addressType: is missing"},
			[]string{"addressType: is missing"},
		},
		{
			"slice of no Service", slice(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }), nil,
			[]string{"metadata.labels.kubernetes.io/service-name: is missing, so the slice belongs to no Service"},
		},
		{
			"range with host bits", &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "k"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.1/16"}},
			}, nil,
			[]string{"spec.cidrs[0]: 10.96.0.1/16 is an address in a range; write the range 10.96.0.0/16"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.stored, lines(parse(tt.obj))); diff != "" {
				t.Errorf("problems of the stored object mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.new, lines(apiobject.Check(tt.obj))); diff != "" {
				t.Errorf("problems of the new object mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func annotated(obj metav1.Object, name, text string) metav1.Object {
	obj.SetAnnotations(map[string]string{name: text, "other": "kept"})
	return obj
}

var (
	noWay = []string{`metadata.annotations.sluice.dev/load-balancing: "rr" is not random, round-robin, least-connections, ` +
		`source-hash or maglev; the annotation is ignored`}
	noWeight = []string{`metadata.annotations.sluice.dev/weight: "0" is not a weight (1 to 65535); each endpoint counts as 1`}
)

var words = []string{
	`spec.type: "Magic" is not ClusterIP, NodePort, LoadBalancer or ExternalName`,
	`spec.internalTrafficPolicy: "Near" is not Cluster or Local`,
	`spec.externalTrafficPolicy: "Far" is not Cluster or Local`,
	`spec.sessionAffinity: "Cookie" is not None or ClientIP`,
	`status.loadBalancer.ingress[0].ipMode: "Odd" is not VIP or Proxy`,
}

func parse(obj metav1.Object) (problems []apiobject.Problem) {
	switch obj := obj.(type) {
	case *v1.Service:
		_, problems = apiobject.ParseService(obj, apiobject.Allowed{})
	case *discoveryv1.EndpointSlice:
		_, problems = apiobject.ParseEndpointSlice(obj, func(*discoveryv1.Endpoint, netip.Addr) {})
	case *v1.Node:
		_, problems = apiobject.ParseNode(obj)
	case *networkingv1.ServiceCIDR:
		_, problems = apiobject.ParseServiceCIDR(obj)
	}
	return problems
}

func lines(problems []apiobject.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field+": "+p.Reason)
	}
	return out
}
