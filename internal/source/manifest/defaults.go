package manifest

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// defaultService sets what the API server sets in a new Service, as far as a
// proxy reads it. Addresses and node ports are not allocated.
func defaultService(svc *v1.Service) {
	spec := &svc.Spec
	if spec.Type == "" {
		spec.Type = v1.ServiceTypeClusterIP
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = v1.ServiceAffinityNone
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer {
		if spec.ExternalTrafficPolicy == "" {
			spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		}
	}
	for i := range spec.Ports {
		if spec.Ports[i].Protocol == "" {
			spec.Ports[i].Protocol = v1.ProtocolTCP
		}
	}
	defaultAffinity(spec)
	defaultAddresses(spec)
}

func defaultAffinity(spec *v1.ServiceSpec) {
	if spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return
	}
	if spec.SessionAffinityConfig == nil {
		spec.SessionAffinityConfig = &v1.SessionAffinityConfig{}
	}
	if spec.SessionAffinityConfig.ClientIP == nil {
		spec.SessionAffinityConfig.ClientIP = &v1.ClientIPConfig{}
	}
	if clientIP := spec.SessionAffinityConfig.ClientIP; clientIP.TimeoutSeconds == nil {
		clientIP.TimeoutSeconds = new(v1.DefaultClientIPServiceAffinitySeconds)
	}
}

// defaultAddresses fills the singular and the plural field from each other, and
// the families from the addresses.
func defaultAddresses(spec *v1.ServiceSpec) {
	switch {
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = []string{spec.ClusterIP}
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.IPFamilies) > 0 {
		return
	}
	for _, text := range spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			spec.IPFamilies = append(spec.IPFamilies, familyOf(addr))
		}
	}
}

func familyOf(addr netip.Addr) v1.IPFamily {
	if addr.Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// defaultEndpointSlice sets what the API server sets in a new EndpointSlice.
func defaultEndpointSlice(slice *discoveryv1.EndpointSlice) {
	for i := range slice.Ports {
		if slice.Ports[i].Name == nil {
			slice.Ports[i].Name = new("")
		}
		if slice.Ports[i].Protocol == nil {
			slice.Ports[i].Protocol = new(v1.ProtocolTCP)
		}
	}
}

// defaultNode fills the plural field of the pod ranges from the singular one.
func defaultNode(node *v1.Node) {
	if len(node.Spec.PodCIDRs) == 0 && node.Spec.PodCIDR != "" {
		node.Spec.PodCIDRs = []string{node.Spec.PodCIDR}
	}
}
