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

// Pods is where all endpoints are: some host must answer for all of it.
var Pods = netip.MustParsePrefix("10.128.0.0/12")

const (
	Namespace   = "load"                       // where the objects are
	ClusterCIDR = "10.128.0.0/9,fd00:244::/48" // where all pods are, clients too, as a flag has it
	MaxServices = 48_000                       // beside our own

	// Where Services and endpoints listen, and where they do for bulk.
	ServicePort, TargetPort  = 80, 8080
	BulkPort, BulkTargetPort = 81, 8081

	// stride is how many addresses belong to one Service; its endpoints are the
	// first ones, and the others take their places.
	stride        = 16
	dataEndpoints = 10  // of the Service Data
	nodes         = 100 // other nodes that the endpoints are said to be on
)

// Our own Services have numbers above those of the load: Probe has one endpoint,
// which is replaced again and again, and Data never changes.
const (
	Probe = MaxServices + iota
	Data
	end
	own = end - Probe
)

// ClusterIP is the address of a Service. None ends in 0 or 255.
func ClusterIP(service int) netip.Addr {
	const perNet = 250
	return netip.AddrFrom4([4]byte{10, 96, 1 + byte(service/perNet), 1 + byte(service%perNet)})
}

// Endpoint is an address of a Service's endpoints.
func Endpoint(service, number int) netip.Addr {
	b := Pods.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(service*stride+number))
	return netip.AddrFrom4(b)
}

// Target is a Service as clients see it.
func Target(service int) client.Target {
	return client.Target{Addr: netip.AddrPortFrom(ClusterIP(service), ServicePort), Has: func(a netip.Addr) bool {
		return Endpoint(service, 0).Compare(a) <= 0 && a.Less(Endpoint(service+1, 0))
	}}
}

// DataTargets are the endpoints of the Service Data.
func DataTargets() (out []netip.AddrPort) {
	for k := range dataEndpoints {
		out = append(out, netip.AddrPortFrom(Endpoint(Data, k), TargetPort))
	}
	return out
}

func name(service int) string { return fmt.Sprintf("svc-%d", service) }

// ports are those of a Service.
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

// sliceObject is the EndpointSlice of a Service with these of its addresses. It
// says that they are on other nodes, as nearly all are in a large cluster.
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

// first returns the numbers below n.
func first(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// IsProbe reports whether an EndpointSlice is that of the Service Probe.
func IsProbe(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == Namespace && s.Labels[discoveryv1.LabelServiceName] == name(Probe) && len(s.Endpoints) > 0
}
