package load

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/test/cluster/peers/traffic"
)

// Pods is where all endpoints are: some host must answer for all of it.
var Pods = netip.MustParsePrefix("10.128.0.0/12")

// ClusterCIDR is where all pods are, clients too, as a flag has it.
const ClusterCIDR = "10.128.0.0/9,fd00:244::/48"

const (
	// Namespace is where the objects are.
	Namespace = "load"
	// ServicePort is where Services listen.
	ServicePort = 80
	// BulkPort is where the Service for bulk listens.
	BulkPort = 81
	// stride is how many addresses belong to one Service; its endpoints are the
	// first ones, and the others take their places.
	stride = 16
	// MaxServices is how many there may be beside our own.
	MaxServices = 48_000
	// nodes is how many other nodes the endpoints are said to be on.
	nodes = 100
)

// Our own Services have numbers above those of the load.
const (
	// Probe is a Service of one endpoint, which is replaced again and again.
	Probe = MaxServices + iota
	// Data is a Service for TCP, UDP and bulk, which never changes.
	Data
)

// own is how many of those there are.
const own = 2

// dataEndpoints is how many endpoints the Service Data has.
const dataEndpoints = 10

// ClusterIP is the address of a Service. None ends in 0 or 255.
func ClusterIP(service int) netip.Addr {
	const perNet = 250
	return netip.AddrFrom4([4]byte{10, 96, 1 + byte(service/perNet), 1 + byte(service%perNet)})
}

// Endpoint is an address of a Service's endpoints.
func Endpoint(service, number int) netip.Addr {
	base := Pods.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+uint32(service*stride+number))
	return netip.AddrFrom4(b)
}

// Belongs reports whether an address may be an endpoint of a Service.
func Belongs(service int, a netip.Addr) bool {
	first, last := Endpoint(service, 0), Endpoint(service, stride-1)
	return first.Compare(a) <= 0 && a.Compare(last) <= 0
}

// Target is a Service as clients see it.
func Target(service int) traffic.Target {
	return traffic.Target{
		Addr: netip.AddrPortFrom(ClusterIP(service), ServicePort),
		Has:  func(a netip.Addr) bool { return Belongs(service, a) },
	}
}

// Direct is the first endpoint of a Service, to be reached without it.
func Direct(service int) traffic.Target {
	return traffic.Target{Addr: netip.AddrPortFrom(Endpoint(service, 0), traffic.Port)}
}

// DataTargets are the endpoints of the Service Data.
func DataTargets() []netip.AddrPort {
	var out []netip.AddrPort
	for k := range dataEndpoints {
		out = append(out, netip.AddrPortFrom(Endpoint(Data, k), traffic.Port))
	}
	return out
}

func name(service int) string { return fmt.Sprintf("svc-%d", service) }

// ports are those of a Service.
func ports(service int) []v1.ServicePort {
	tcp := v1.ServicePort{Name: "tcp", Protocol: v1.ProtocolTCP, Port: ServicePort, TargetPort: intstr.FromInt32(traffic.Port)}
	if service != Data {
		return []v1.ServicePort{tcp}
	}
	return []v1.ServicePort{
		tcp,
		{Name: "udp", Protocol: v1.ProtocolUDP, Port: ServicePort, TargetPort: intstr.FromInt32(traffic.Port)},
		{Name: "bulk", Protocol: v1.ProtocolTCP, Port: BulkPort, TargetPort: intstr.FromInt32(traffic.BulkPort)},
	}
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
			Addresses:  []string{Endpoint(service, k).String()},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef: &v1.ObjectReference{
				Kind: "Pod", Namespace: Namespace, Name: fmt.Sprintf("%s-%d", name(service), k),
			},
		})
	}
	return s
}

// first returns the numbers below n.
func first(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// IsProbe reports whether an EndpointSlice is that of the Service Probe.
func IsProbe(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == Namespace && s.Labels[discoveryv1.LabelServiceName] == name(Probe) && len(s.Endpoints) > 0
}
