package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxAffinitySeconds is the longest affinity the API allows: one day.
const maxAffinitySeconds = 86400

// service defaults and checks a Service. A wrong address that is only one of
// several ways in is left out; anything else refuses the object, because a
// Service that does something else than written is worse than yesterday's.
func (it *item) service(svc *v1.Service) {
	defaultService(svc)
	spec := &svc.Spec
	oneOf(it, "spec.type", spec.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	oneOf(it, "spec.internalTrafficPolicy", *spec.InternalTrafficPolicy,
		v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	oneOf(it, "spec.externalTrafficPolicy", spec.ExternalTrafficPolicy, "",
		v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	it.affinity(spec)
	it.clusterIPs(spec)
	it.servicePorts(spec)
	it.portOrZero("spec.healthCheckNodePort", spec.HealthCheckNodePort)
	for i, text := range spec.LoadBalancerSourceRanges {
		// To leave one out could leave none, and none lets everybody in.
		if _, bad := parsePrefix(strings.TrimSpace(text)); bad != "" {
			it.refuse(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%s", bad)
		}
	}
	it.externalIPs(spec)
	it.ingress(svc)
}

func (it *item) affinity(spec *v1.ServiceSpec) {
	oneOf(it, "spec.sessionAffinity", spec.SessionAffinity, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)
	if spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return
	}
	if n := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; n < 1 || n > maxAffinitySeconds {
		it.refuse("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
			"%d is not a time (1 to %d seconds)", n, maxAffinitySeconds)
	}
}

func (it *item) clusterIPs(spec *v1.ServiceSpec) {
	ips := spec.ClusterIPs
	switch {
	case spec.Type == v1.ServiceTypeExternalName || spec.ClusterIP == v1.ClusterIPNone:
		return
	case len(ips) == 0:
		it.note("spec.clusterIP", "is missing and nothing here allocates one: the Service gets no address")
		return
	case len(ips) > 2:
		it.refuse("spec.clusterIPs", "has %d addresses, at most one of each family is possible", len(ips))
		return
	case ips[0] != spec.ClusterIP:
		it.refuse("spec.clusterIPs[0]", "%s is not spec.clusterIP %s", quote(ips[0]), quote(spec.ClusterIP))
	}
	for i, family := range spec.IPFamilies {
		oneOf(it, fmt.Sprintf("spec.ipFamilies[%d]", i), family, v1.IPv4Protocol, v1.IPv6Protocol)
	}
	var seen []v1.IPFamily
	for i, text := range ips {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		addr, bad := parseAddr(text)
		switch family := familyOf(addr); {
		case bad != "":
			it.refuse(field, "%s", bad)
		case slices.Contains(seen, family):
			it.refuse(field, "%s is a second %s address", addr, family)
		case i < len(spec.IPFamilies) && spec.IPFamilies[i] != family:
			it.refuse(field, "%s is not an %s address as spec.ipFamilies[%d] says", addr, spec.IPFamilies[i], i)
		default:
			seen = append(seen, family)
		}
	}
}

func (it *item) servicePorts(spec *v1.ServiceSpec) {
	if len(spec.Ports) == 0 && spec.Type != v1.ServiceTypeExternalName && spec.ClusterIP != v1.ClusterIPNone {
		it.note("spec.ports", "is empty: nothing is forwarded")
	}
	type number struct {
		protocol v1.Protocol
		port     int32
	}
	names, numbers := map[string]int{}, map[number]int{}
	for i := range spec.Ports {
		p, field := &spec.Ports[i], fmt.Sprintf("spec.ports[%d]", i)
		it.port(field+".port", p.Port)
		it.portOrZero(field+".nodePort", p.NodePort)
		it.protocol(field+".protocol", p.Protocol)
		if p.Name == "" && len(spec.Ports) > 1 {
			it.refuse(field+".name", "is missing, which only a single port may do")
			continue
		}
		it.portName(field+".name", p.Name)
		if j, twice := names[p.Name]; twice {
			it.refuse(field+".name", "%s is the name of spec.ports[%d] too", quote(p.Name), j)
		}
		if j, twice := numbers[number{p.Protocol, p.Port}]; twice {
			it.refuse(field+".port", "%s %d is spec.ports[%d] too", p.Protocol, p.Port, j)
		}
		names[p.Name], numbers[number{p.Protocol, p.Port}] = i, i
	}
}

func (it *item) externalIPs(spec *v1.ServiceSpec) {
	var kept []string
	for i, text := range spec.ExternalIPs {
		if it.frontend(fmt.Sprintf("spec.externalIPs[%d]", i), text, spec) {
			kept = append(kept, text)
		}
	}
	spec.ExternalIPs = kept
}

func (it *item) ingress(svc *v1.Service) {
	var kept []v1.LoadBalancerIngress
	for i, ingress := range svc.Status.LoadBalancer.Ingress {
		field := fmt.Sprintf("status.loadBalancer.ingress[%d]", i)
		if ingress.IPMode != nil {
			oneOf(it, field+".ipMode", *ingress.IPMode, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		}
		if ingress.IP == "" || it.frontend(field+".ip", ingress.IP, &svc.Spec) {
			kept = append(kept, ingress)
		}
	}
	svc.Status.LoadBalancer.Ingress = kept
}

// frontend says whether an address can lead to the Service, and complains if
// not. A Service has no endpoints in a family in which it has no cluster IP.
func (it *item) frontend(field, text string, spec *v1.ServiceSpec) bool {
	addr, bad := parseAddr(text)
	if bad == "" && len(spec.IPFamilies) > 0 && !slices.Contains(spec.IPFamilies, familyOf(addr)) {
		bad = fmt.Sprintf("%s is an %s address and the Service has no %s cluster IP", addr, familyOf(addr), familyOf(addr))
	}
	if bad != "" {
		it.complain(field, "%s; it is left out", bad)
	}
	return bad == ""
}

// endpointSlice defaults and checks an EndpointSlice. An endpoint without a
// usable address is left out: traffic to it would be lost.
func (it *item) endpointSlice(slice *discoveryv1.EndpointSlice) {
	defaultEndpointSlice(slice)
	if slice.Labels[discoveryv1.LabelServiceName] == "" {
		it.refuse("metadata.labels."+discoveryv1.LabelServiceName, "is missing, so the slice belongs to no Service")
	}
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		it.unused = true
		it.note("addressType", "FQDN is not forwarded to: the slice is ignored")
		return
	case "":
		it.refuse("addressType", "is missing")
		return
	default:
		it.refuse("addressType", "%s is not IPv4 or IPv6", quote(string(slice.AddressType)))
		return
	}
	for i := range slice.Ports {
		p, field := &slice.Ports[i], fmt.Sprintf("ports[%d]", i)
		if p.Port == nil {
			it.note(field+".port", "is missing: the port is ignored")
		} else {
			it.port(field+".port", *p.Port)
		}
		it.protocol(field+".protocol", *p.Protocol)
		it.portName(field+".name", *p.Name)
	}
	it.endpoints(slice)
}

func (it *item) endpoints(slice *discoveryv1.EndpointSlice) {
	if len(slice.Endpoints) == 0 {
		it.note("endpoints", "is empty")
		return
	}
	type finding struct{ field, reason string }
	var kept []discoveryv1.Endpoint
	var bad []finding
	for i, ep := range slice.Endpoints {
		field := fmt.Sprintf("endpoints[%d].addresses", i)
		if len(ep.Addresses) == 0 {
			bad = append(bad, finding{field, "is empty"})
			continue
		}
		addr, reason := parseAddr(ep.Addresses[0])
		if reason == "" && string(familyOf(addr)) != string(slice.AddressType) {
			reason = fmt.Sprintf("%s is not an %s address as addressType says", addr, slice.AddressType)
		}
		if reason != "" {
			bad = append(bad, finding{field + "[0]", reason})
			continue
		}
		kept = append(kept, ep)
	}
	if len(kept) == 0 {
		// A slice with nothing left is more likely a slip than an intention.
		it.refuse(bad[0].field, "%s; none of the %d endpoints is left, so the slice is refused",
			bad[0].reason, len(slice.Endpoints))
		return
	}
	for _, f := range bad {
		it.complain(f.field, "%s; the endpoint is left out", f.reason)
	}
	slice.Endpoints = kept
}

// node defaults and checks a Node.
func (it *item) node(node *v1.Node) {
	defaultNode(node)
	for i, text := range node.Spec.PodCIDRs {
		if _, bad := parsePrefix(text); bad != "" {
			it.refuse(fmt.Sprintf("spec.podCIDRs[%d]", i), "%s", bad)
		}
	}
	var kept []v1.NodeAddress
	for i, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP || a.Type == v1.NodeExternalIP {
			if _, bad := parseAddr(a.Address); bad != "" {
				it.complain(fmt.Sprintf("status.addresses[%d].address", i), "%s; it is left out", bad)
				continue
			}
		}
		kept = append(kept, a)
	}
	node.Status.Addresses = kept
}

// serviceCIDR checks a ServiceCIDR.
func (it *item) serviceCIDR(cidr *networkingv1.ServiceCIDR) {
	if len(cidr.Spec.CIDRs) == 0 {
		it.note("spec.cidrs", "is empty")
	}
	for i, text := range cidr.Spec.CIDRs {
		field := fmt.Sprintf("spec.cidrs[%d]", i)
		switch prefix, bad := parsePrefix(text); {
		case bad != "":
			it.refuse(field, "%s", bad)
		case prefix != prefix.Masked():
			it.refuse(field, "%s is an address in a range, the range is %s", prefix, prefix.Masked())
		}
	}
}

func (it *item) port(field string, n int32) {
	if n < 1 || n > 65535 {
		it.refuse(field, "%d is not a port (1 to 65535)", n)
	}
}

// portOrZero checks a port that may be left unset.
func (it *item) portOrZero(field string, n int32) {
	if n != 0 {
		it.port(field, n)
	}
}

func (it *item) portName(field, name string) {
	if name != "" && len(validation.IsDNS1123Label(name)) > 0 {
		it.refuse(field, "%s is not a name: it needs lower case letters, digits and -", quote(name))
	}
}

func (it *item) protocol(field string, p v1.Protocol) {
	oneOf(it, field, p, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
}

// oneOf refuses a word that is not among the allowed ones.
func oneOf[S ~string](it *item, field string, value S, allowed ...S) {
	if slices.Contains(allowed, value) {
		return
	}
	var words []string
	for _, a := range allowed {
		if a != "" {
			words = append(words, string(a))
		}
	}
	last := len(words) - 1
	it.refuse(field, "%s is not %s or %s", quote(string(value)), strings.Join(words[:last], ", "), words[last])
}

// parseAddr returns the address of one host, or what is wrong with the text.
func parseAddr(text string) (addr netip.Addr, bad string) {
	addr, err := netip.ParseAddr(text)
	switch {
	case text == "":
		return addr, "is empty"
	case err != nil || addr.Zone() != "":
		return addr, quote(text) + " is not an IP address"
	case addr.Is4In6():
		return addr, fmt.Sprintf("%s is an IPv4 address in IPv6 clothes, write %s", addr, addr.Unmap())
	case addr.IsUnspecified() || addr.IsMulticast():
		return addr, fmt.Sprintf("%s is not the address of one host", addr)
	}
	return addr, ""
}

// parsePrefix returns the range, or what is wrong with the text.
func parsePrefix(text string) (prefix netip.Prefix, bad string) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return prefix, quote(text) + " is not a range of addresses such as 10.0.0.0/8 or fd00::/8"
	}
	return prefix, ""
}
