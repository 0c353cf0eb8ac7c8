package resolve

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

const testNode = "here"

// serviceOf returns a Service "namespace/name" of type ClusterIP with one TCP
// port "http", 80, changed by edit.
func serviceOf(name, clusterIP string, edit ...func(*v1.Service)) *v1.Service {
	namespace, name, _ := strings.Cut(name, "/")
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.ServiceSpec{
			Type:  v1.ServiceTypeClusterIP,
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	if clusterIP != "" {
		s.Spec.ClusterIP = clusterIP
		s.Spec.ClusterIPs = []string{clusterIP}
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

// loadBalancer gives a Service addresses of a load balancer.
func loadBalancer(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
		}
	}
}

func externalIPs(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs = ips }
}

// nodePort gives the first port a NodePort.
func nodePort(n int32) func(*v1.Service) {
	return func(s *v1.Service) {
		if s.Spec.Type != v1.ServiceTypeLoadBalancer {
			s.Spec.Type = v1.ServiceTypeNodePort
		}
		s.Spec.Ports[0].NodePort = n
	}
}

func ranges(cidrs ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = cidrs }
}

func externalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *v1.Service) {
	s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal)
}

// dualStack gives a Service a ClusterIP of each family.
func dualStack(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
}

// sliceOf returns a slice "namespace/name" for a Service of the namespace, with
// one TCP port "http", 8080. Its family is that of its first address.
func sliceOf(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	namespace, name, _ := strings.Cut(name, "/")
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports:       []discoveryv1.EndpointPort{slicePortOf("http", 8080)},
	}
	if len(endpoints) > 0 && len(endpoints[0].Addresses) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func slicePortOf(name string, port int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: new(v1.ProtocolTCP), Port: &port}
}

// endpointOf returns a ready endpoint on another node, changed by edit.
func endpointOf(ip string, edit ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: new("elsewhere")}
	for _, do := range edit {
		do(&e)
	}
	return e
}

func here(e *discoveryv1.Endpoint) { e.NodeName = new(testNode) }

func nowhere(e *discoveryv1.Endpoint) { e.NodeName = nil }

// conditions sets an endpoint's conditions by their letters: r, s, t for true,
// and a dash instead of a letter for false.
func conditions(letters string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{
			Ready: new(letters[0] == 'r'), Serving: new(letters[1] == 's'), Terminating: new(letters[2] == 't'),
		}
	}
}

func zones(names ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, n := range names {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: n})
		}
	}
}

func nodes(names ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		for _, n := range names {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
	}
}

// nodeOf returns our Node in a zone, with internal IPs.
func nodeOf(zone string, ips ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}
	if zone != "" {
		n.Labels = map[string]string{v1.LabelTopologyZone: zone}
	}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return n
}

func serviceCIDROf(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

// resolverOf returns a resolver that has seen objects, and resolved them.
func resolverOf(t *testing.T, objects ...any) *Resolver {
	t.Helper()
	r := New(Settings{NodeName: testNode})
	add(t, r, objects...)
	r.Update()
	return r
}

// add tells a resolver of objects that are new or changed.
func add(t testing.TB, r *Resolver, objects ...any) {
	t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Service:
			r.Services.Update(nil, o)
		case *discoveryv1.EndpointSlice:
			r.Endpoints.Update(o, false)
		case *v1.Node:
			r.UpdateNode(o)
		case *networkingv1.ServiceCIDR:
			r.UpdateServiceCIDR(nil, o)
		default:
			t.Fatalf("unknown object %T", o)
		}
	}
}

// remove tells a resolver that objects are gone.
func remove(t testing.TB, r *Resolver, objects ...any) {
	t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Service:
			r.Services.Update(o, nil)
		case *discoveryv1.EndpointSlice:
			r.Endpoints.Update(o, true)
		case *networkingv1.ServiceCIDR:
			r.UpdateServiceCIDR(o, nil)
		default:
			t.Fatalf("unknown object %T", o)
		}
	}
}

// wantState compares a resolver's rows and problems with lines of text.
func wantState(t *testing.T, r *Resolver, rows, problems []string) {
	t.Helper()
	if diff := cmp.Diff(rows, lines(r.State().String())); diff != "" {
		t.Errorf("rows mismatch (-want +got):\n%s", diff)
	}
	var got []string
	for _, p := range problemsOf(r) {
		got = append(got, p.String())
	}
	if diff := cmp.Diff(problems, got); diff != "" {
		t.Errorf("problems mismatch (-want +got):\n%s", diff)
	}
}

// problemsOf returns all that is wrong, sorted.
func problemsOf(r *Resolver) []Problem {
	return slices.SortedFunc(maps.Keys(r.problems.now), CompareProblems)
}

// lines splits a text that ends with a newline.
func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// rowNamed returns a row by its printed key.
func rowNamed(t *testing.T, s *proxy.State, key string) *proxy.ServicePort {
	t.Helper()
	for k, row := range s.Rows {
		if k.String() == key {
			return row
		}
	}
	t.Fatalf("no row %s in\n%v", key, s)
	return nil
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// byValue lets cmp compare netip values.
var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}
