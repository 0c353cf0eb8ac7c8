package load

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/test/cluster/peers/client"
)

// Pods contains all endpoints; one host must answer for all of it.
var Pods = netip.MustParsePrefix("10.128.0.0/12")

const (
	Namespace   = "load"                       // of all objects
	ClusterCIDR = "10.128.0.0/9,fd00:244::/48" // --cluster-cidr, of endpoints and clients
	MaxServices = 48_000                       // without Probe and Data

	// The ports of Services and endpoints, for requests and for bulk data.
	ServicePort, TargetPort  = 80, 8080
	BulkPort, BulkTargetPort = 81, 8081

	// stride is how many addresses are reserved for a Service; its endpoints use the first ones,
	// and the others replace them.
	stride        = 16
	dataEndpoints = 10  // of the Service Data
	nodes         = 100 // other nodes, as nodeName of endpoints
)

// Probe and Data have numbers above those of the load: the only endpoint of Probe is replaced
// repeatedly, Data never changes.
const (
	Probe = MaxServices + iota
	Data
	end
	own = end - Probe
)

// ClusterIP returns the address of a Service. None ends in 0 or 255.
func ClusterIP(service int) netip.Addr {
	const perNet = 250
	return netip.AddrFrom4([4]byte{10, 96, 1 + byte(service/perNet), 1 + byte(service%perNet)})
}

// Endpoint returns an endpoint address of a Service.
func Endpoint(service, number int) netip.Addr {
	b := Pods.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(service*stride+number))
	return netip.AddrFrom4(b)
}

// Target returns a Service as a target for clients.
func Target(service int) client.Target {
	return client.Target{Addr: netip.AddrPortFrom(ClusterIP(service), ServicePort), Has: func(a netip.Addr) bool {
		return Endpoint(service, 0).Compare(a) <= 0 && a.Less(Endpoint(service+1, 0))
	}}
}

// DataTargets returns the endpoints of the Service Data.
func DataTargets() (out []netip.AddrPort) {
	for k := range dataEndpoints {
		out = append(out, netip.AddrPortFrom(Endpoint(Data, k), TargetPort))
	}
	return out
}

func name(service int) string { return fmt.Sprintf("svc-%d", service) }

// ports returns the ports of a Service.
func ports(service int) []v1.ServicePort {
	out := []v1.ServicePort{{Name: "tcp", Protocol: v1.ProtocolTCP, Port: ServicePort, TargetPort: intstr.FromInt32(TargetPort)}}
	if service == Data {
		out = append(out,
			v1.ServicePort{Name: "udp", Protocol: v1.ProtocolUDP, Port: ServicePort, TargetPort: intstr.FromInt32(TargetPort)},
			v1.ServicePort{Name: "bulk", Protocol: v1.ProtocolTCP, Port: BulkPort, TargetPort: intstr.FromInt32(BulkTargetPort)})
	}
	return out
}

func serviceObject(service int) *v1.Service {
	one, cluster := v1.IPFamilyPolicySingleStack, v1.ServiceInternalTrafficPolicyCluster
	addr := ClusterIP(service).String()
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name(service), Namespace: Namespace},
		Spec: v1.ServiceSpec{
			ClusterIP: addr, ClusterIPs: []string{addr},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, IPFamilyPolicy: &one,
			Type: v1.ServiceTypeClusterIP, SessionAffinity: v1.ServiceAffinityNone,
			InternalTrafficPolicy: &cluster,
			Selector:              map[string]string{"app": name(service)},
			Ports:                 ports(service),
		},
	}
}

// sliceObject returns the EndpointSlice of a Service with the endpoints of these numbers. They are
// on other nodes, as nearly all endpoints are in a large cluster.
func sliceObject(service int, numbers ...int) *discoveryv1.EndpointSlice {
	yes, no := true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name(service) + "-v4", Namespace: Namespace,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name(service),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range ports(service) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.TargetPort.IntVal})
	}
	for _, k := range numbers {
		node := fmt.Sprintf("other-%d", (service+k)%nodes)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{Endpoint(service, k).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &v1.ObjectReference{Kind: "Pod", Namespace: Namespace, Name: fmt.Sprintf("%s-%d", name(service), k)},
		})
	}
	return s
}

func numbersBelow(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// IsProbe reports whether an EndpointSlice belongs to the Service Probe and has endpoints.
func IsProbe(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == Namespace && s.Labels[discoveryv1.LabelServiceName] == name(Probe) && len(s.Endpoints) > 0
}
