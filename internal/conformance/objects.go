package conformance

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// made is when every Service was, unless a case is about which is older.
func made(hoursBefore int) metav1.Time {
	return metav1.NewTime(time.Unix(1700000000, 0).Add(-time.Duration(hoursBefore) * time.Hour).UTC())
}

// complete fills in what the API server would, in a world and what changes it,
// and finds what the proxy would be set up wrongly by.
func (w *World) complete(changes ...Phase) error {
	if _, err := w.Config.settings(oracleMode); err != nil {
		return err
	}
	for _, p := range append(changes, Phase{Services: w.Services, Slices: w.Slices}) {
		for _, s := range p.Services {
			defaultService(s)
		}
		for _, s := range p.Slices {
			if s.Name == "" {
				return errors.New("a slice without a name")
			}
			for i := range s.Ports {
				if s.Ports[i].Protocol == nil {
					s.Ports[i].Protocol = new(v1.ProtocolTCP)
				}
				if protocols[*s.Ports[i].Protocol] == 0 {
					return fmt.Errorf("slice %s: protocol %q is unknown", s.Name, *s.Ports[i].Protocol)
				}
			}
		}
	}
	return nil
}

func defaultService(s *v1.Service) {
	if s.CreationTimestamp.IsZero() {
		s.CreationTimestamp = made(0)
	}
	if s.Spec.Type == "" {
		s.Spec.Type = v1.ServiceTypeClusterIP
	}
	if s.Spec.ClusterIPs == nil && s.Spec.ClusterIP != "" {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if s.Spec.ClusterIP == "" && s.Spec.ClusterIPs != nil {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Protocol == "" {
			s.Spec.Ports[i].Protocol = v1.ProtocolTCP
		}
	}
}

// endpointSlice returns a slice of a Service, whose namespace and name it takes.
func endpointSlice(of *v1.Service, t discoveryv1.AddressType, port int32) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: t}
	s.Namespace, s.Name = of.Namespace, fmt.Sprintf("%s-%s", of.Name, t)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of.Name}
	for _, p := range of.Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
	}
	return s
}

func endpoint(addr, node string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node}
}
