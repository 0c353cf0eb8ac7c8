package conformance

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

// object returns the Service as the API has it.
func (s *Service) object() *v1.Service {
	namespace, name, _ := strings.Cut(s.Name, "/")
	o := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	// All are made at one moment unless a case is about which is older.
	o.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0).Add(-time.Duration(s.Age) * time.Hour))
	o.Spec.Type = v1.ServiceType(s.Type)
	if s.Type == "" {
		o.Spec.Type = v1.ServiceTypeClusterIP
	}
	s.addresses(&o.Spec)
	o.Spec.ExternalIPs = s.ExternalIPs
	o.Spec.LoadBalancerSourceRanges = s.SourceRanges
	o.Spec.HealthCheckNodePort = s.HealthCheckNodePort
	o.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicy(s.ETP)
	if s.ITP != "" {
		policy := v1.ServiceInternalTrafficPolicy(s.ITP)
		o.Spec.InternalTrafficPolicy = &policy
	}
	if s.Affinity != nil {
		o.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
			ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &s.Affinity.ClientIPTimeoutSeconds},
		}
	}
	for _, p := range s.Ports {
		port := v1.ServicePort{Name: p.Name, Protocol: v1.Protocol(p.protocol()), NodePort: p.NodePort}
		if p.Port != nil {
			port.Port = *p.Port
		}
		o.Spec.Ports = append(o.Spec.Ports, port)
	}
	for _, in := range s.LBIngress {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, in.object())
	}
	return o
}

// addresses fills in the ClusterIPs and their families.
func (s *Service) addresses(spec *v1.ServiceSpec) {
	spec.ClusterIP, spec.ClusterIPs = s.ClusterIP, s.ClusterIPs
	if spec.ClusterIPs == nil && s.ClusterIP != "" {
		spec.ClusterIPs = []string{s.ClusterIP}
	}
	if spec.ClusterIP == "" && len(s.ClusterIPs) > 0 {
		spec.ClusterIP = s.ClusterIPs[0]
	}
	for _, f := range s.IPFamilies {
		spec.IPFamilies = append(spec.IPFamilies, v1.IPFamily(f))
	}
	if spec.IPFamilies == nil && s.Family != "" {
		spec.IPFamilies = []v1.IPFamily{v1.IPFamily(s.Family)}
	}
}

func (in Ingress) object() v1.LoadBalancerIngress {
	o := v1.LoadBalancerIngress{IP: in.IP, Hostname: in.Hostname}
	if in.IPMode != "" {
		mode := v1.LoadBalancerIPMode(in.IPMode)
		o.IPMode = &mode
	}
	return o
}

func (p Port) protocol() string {
	if p.Proto == "" {
		return "TCP"
	}
	return p.Proto
}

// object returns the EndpointSlice as the API has it.
func (s *Slice) object() *discoveryv1.EndpointSlice {
	namespace, name, _ := strings.Cut(s.Service, "/")
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: s.Name,
		Labels: map[string]string{discoveryv1.LabelServiceName: name},
	}}
	o.AddressType = discoveryv1.AddressType(s.AddressType)
	for _, p := range s.Ports {
		protocol := v1.Protocol(p.protocol())
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &protocol, Port: p.Port})
	}
	for _, e := range s.Endpoints {
		o.Endpoints = append(o.Endpoints, e.object())
	}
	return o
}

func (e Endpoint) object() discoveryv1.Endpoint {
	o := discoveryv1.Endpoint{
		Addresses:  append([]string{e.IP}, e.ExtraAddresses...),
		Conditions: discoveryv1.EndpointConditions{Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating},
	}
	if e.Node != "" {
		o.NodeName = &e.Node
	}
	if e.ZoneHints != nil || e.NodeHints != nil {
		o.Hints = &discoveryv1.EndpointHints{}
	}
	for _, z := range e.ZoneHints {
		o.Hints.ForZones = append(o.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range e.NodeHints {
		o.Hints.ForNodes = append(o.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return o
}

// place returns the node that the endpoint is really on.
func (e Endpoint) place() string {
	switch {
	case e.Place != "":
		return e.Place
	case e.Node != "":
		return e.Node
	default:
		return "elsewhere"
	}
}

// named gives slices without a name one by their place in the list, and an
// address type by their first endpoint.
func (w *World) named() error {
	for i, s := range w.Slices {
		if s.Name == "" {
			_, service, _ := strings.Cut(s.Service, "/")
			s.Name = fmt.Sprintf("%s-%d", service, i)
		}
		if err := s.typed(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Slice) typed() error {
	if s.AddressType != "" {
		return nil
	}
	s.AddressType = proxy.IPv4.String()
	if len(s.Endpoints) == 0 {
		return nil
	}
	a, err := netip.ParseAddr(s.Endpoints[0].IP)
	if err != nil {
		return fmt.Errorf("slice %s: %w", s.Name, err)
	}
	s.AddressType = proxy.FamilyOf(a).String()
	return nil
}

// after returns the world as a phase leaves it.
func (w *World) after(p Phase) (*World, error) {
	next := &World{Config: w.Config, NodeLabels: w.NodeLabels}
	if p.NodeLabels != nil {
		next.NodeLabels = p.NodeLabels
	}
	for _, s := range w.Services {
		if !p.DeleteServices.has(s.Name) {
			next.Services = append(next.Services, s)
		}
	}
	for _, s := range p.Services {
		next.Services = replace(next.Services, s, func(s *Service) string { return s.Name })
	}
	for _, s := range w.Slices {
		if !p.DeleteSlices.has(s.Name) {
			next.Slices = append(next.Slices, s)
		}
	}
	for _, s := range p.Slices {
		if s.Name == "" {
			return nil, fmt.Errorf("phase %s: a slice without a name", p.Name)
		}
		next.Slices = replace(next.Slices, s, func(s *Slice) string { return s.Service + "/" + s.Name })
	}
	return next, next.named()
}

// replace puts an object in the place of the one with its name, or at the end.
func replace[T any](list []T, o T, name func(T) string) []T {
	for i := range list {
		if name(list[i]) == name(o) {
			list[i] = o
			return list
		}
	}
	return append(list, o)
}
