package apiserver

import (
	"cmp"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// allocator hands out addresses and node ports, each once.
type allocator struct {
	addrs map[v1.IPFamily]netip.Addr // the last one of each family
	port  int32                      // the last node port
}

// newAllocator starts at the first addresses of networks.
func newAllocator(serviceCIDRs []netip.Prefix) allocator {
	a := allocator{addrs: map[v1.IPFamily]netip.Addr{}, port: 30000}
	for _, p := range serviceCIDRs {
		family := v1.IPv4Protocol
		if p.Addr().Is6() {
			family = v1.IPv6Protocol
		}
		a.addrs[family] = p.Addr().Next() // the first one is the API server's own
	}
	return a
}

// complete fills in what clients may leave out.
func (a *allocator) complete(svc *v1.Service) {
	s := &svc.Spec
	setDefault(&s.Type, v1.ServiceTypeClusterIP)
	setDefault(&s.SessionAffinity, v1.ServiceAffinityNone)
	if s.SessionAffinity == v1.ServiceAffinityClientIP && s.SessionAffinityConfig == nil {
		s.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}}
	}
	if s.InternalTrafficPolicy == nil {
		s.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyCluster)
	}
	a.giveAddresses(s)
	if s.Type != v1.ServiceTypeNodePort && s.Type != v1.ServiceTypeLoadBalancer {
		return
	}
	setDefault(&s.ExternalTrafficPolicy, v1.ServiceExternalTrafficPolicyCluster)
	shared := map[int32]int32{} // a port has the same node port in all protocols
	for i := range s.Ports {
		p := &s.Ports[i]
		p.NodePort = cmp.Or(p.NodePort, shared[p.Port])
		a.giveNodePort(&p.NodePort)
		shared[p.Port] = p.NodePort
	}
	if s.Type == v1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		a.giveNodePort(&s.HealthCheckNodePort)
	}
}

// giveAddresses gives a Service that has no ClusterIPs one of each of its families.
func (a *allocator) giveAddresses(s *v1.ServiceSpec) {
	if len(s.IPFamilies) == 0 {
		s.IPFamilies = []v1.IPFamily{v1.IPv4Protocol}
		if s.IPFamilyPolicy != nil && *s.IPFamilyPolicy != v1.IPFamilyPolicySingleStack {
			s.IPFamilies = append(s.IPFamilies, v1.IPv6Protocol)
		}
	}
	if s.ClusterIP == v1.ClusterIPNone || len(s.ClusterIPs) > 0 {
		return
	}
	for _, f := range s.IPFamilies {
		a.addrs[f] = a.addrs[f].Next()
		s.ClusterIPs = append(s.ClusterIPs, a.addrs[f].String())
	}
	s.ClusterIP = s.ClusterIPs[0]
}

func (a *allocator) giveNodePort(port *int32) {
	if *port == 0 {
		a.port++
		*port = a.port
	}
}

// setDefault sets what is empty.
func setDefault[T ~string](to *T, value T) {
	if *to == "" {
		*to = value
	}
}
