package apiobject_test

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// maxReason is more than any reason needs, and less than a log line may be.
const maxReason = 1000

// oneLine wants problems that a log, a terminal and an event can take as they are.
func oneLine(t *testing.T, problems []apiobject.Problem) {
	t.Helper()
	for _, p := range problems {
		line := p.Field + ": " + p.Reason
		if len(line) > maxReason || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("problem %q", line)
		}
	}
}

// FuzzService wants whatever a tenant writes to be read without harm: what is used
// can be an address, and what is not is named in a line.
func FuzzService(f *testing.F) {
	for _, text := range []string{
		"10.0.0.1", "010.0.0.1", "::ffff:10.0.0.1", "fd00::1", "fe80::1%eth0", "127.0.0.1", "::ffff:127.0.0.1", "224.0.0.1", "0.0.0.0",
		"none", "None", "10.0.0.0/8", "::/0", "maglev", "random", "x\x1b[2J\ny", "255.255.255.255",
	} {
		f.Add(text, text, "10.0.0.0/8", "http", int32(80), uint8(0))
		f.Add("10.0.0.1", "192.0.2.1", text, text, int32(-1), uint8(255))
	}
	f.Fuzz(func(t *testing.T, ip, external, word, name string, port int32, flags uint8) {
		obj := service(func(s *v1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip, external}
			s.Spec.Type, s.Spec.SessionAffinity = v1.ServiceType(word), v1.ServiceAffinity(word)
			s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{external, ip}, []string{word, external}
			s.Spec.Ports = []v1.ServicePort{{Name: name, Port: port, NodePort: port, Protocol: v1.Protocol(word)}, {Name: name, Port: port}}
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: external}, {IP: ip, IPMode: new(v1.LoadBalancerIPMode(word))}}
			s.Annotations = map[string]string{apiobject.LoadBalancing: word}
			if flags&1 != 0 {
				s.Spec.Type, s.Spec.HealthCheckNodePort, s.Spec.SessionAffinity = v1.ServiceTypeLoadBalancer, port, v1.ServiceAffinityClientIP
			}
			if flags&2 != 0 {
				s.Spec.IPFamilies = []v1.IPFamily{v1.IPFamily(word), v1.IPv6Protocol}
			}
			if flags&4 != 0 {
				s.Spec.ClusterIPs = nil
			}
		})
		got, problems := apiobject.ParseService(obj, apiobject.Allowed{})
		oneLine(t, problems)
		for family, list := range got.Addresses {
			for _, a := range list {
				usable := !a.Addr.IsUnspecified() && !a.Addr.IsMulticast() && !a.Addr.Is4In6() && a.Addr.Zone() == ""
				if !usable || proxy.FamilyOf(a.Addr) != proxy.Family(family) || a.Kind != proxy.ClusterIP && a.Addr.IsLoopback() {
					t.Errorf("%+v of family %v is used", a, proxy.Family(family))
				}
			}
		}
		oneLine(t, apiobject.Check(obj))
	})
}

// FuzzEndpointSlice does so with what a tenant writes into EndpointSlices, the
// hints and weights included.
func FuzzEndpointSlice(f *testing.F) {
	for _, text := range []string{
		"10.1.0.1", "fd00::1", "127.0.0.1", "169.254.169.254", "fe80::1", "::ffff:10.1.0.1", "ff02::1", "::", "65535", "-1", "0x1", "zone\n-a", "",
	} {
		f.Add(text, "IPv4", text, "http", int32(80))
		f.Add("10.1.0.1", text, "7", text, int32(0))
		f.Add(text, "IPv6", "1", text, int32(65536))
	}
	f.Fuzz(func(t *testing.T, address, kind, weight, name string, port int32) {
		obj := slice(func(s *discoveryv1.EndpointSlice) {
			s.AddressType = discoveryv1.AddressType(kind)
			s.Annotations = map[string]string{apiobject.Weight: weight}
			s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: new(v1.Protocol(name))}, {Port: &port}, {}}
			s.Endpoints = []discoveryv1.Endpoint{
				{Addresses: []string{address}, Zone: &name, NodeName: &name, Hints: &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: name}}, ForNodes: []discoveryv1.ForNode{{Name: weight}},
				}},
				{Addresses: []string{name, address}},
				{},
			}
		})
		got, problems := apiobject.ParseEndpointSlice(obj, func(_ *discoveryv1.Endpoint, a netip.Addr) {
			if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%v is used", a)
			}
		})
		oneLine(t, problems)
		for _, p := range got.Ports {
			if p.Port == 0 || p.Protocol == 0 {
				t.Errorf("port %+v is used", p)
			}
		}
		oneLine(t, apiobject.Check(obj))
	})
}
