package resolve

import (
	"iter"
	"net/netip"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// otherProxyLabel marks a Service that another proxy serves.
const otherProxyLabel = "service.kubernetes.io/service-proxy-name"

// service is what is kept of a Service. It is immutable.
type service struct {
	apiobject.Service
	name     types.NamespacedName
	created  int64 // in Unix seconds, the resolution of API times
	problems []Problem
}

func (s *service) equal(o *service) bool { return reflect.DeepEqual(s, o) }

// parse returns the record of a Service. It is nil if the Service has no rows: it was
// deleted, is headless, has type ExternalName, or is served by another proxy.
func (t *ServiceChangeTracker) parse(name types.NamespacedName, obj *v1.Service) *service {
	if obj == nil {
		return nil
	}
	_, otherProxy := obj.Labels[otherProxyLabel]
	if otherProxy || apiobject.Headless(&obj.Spec) || obj.Spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	if t.ignoreExternalIPs && len(obj.Spec.ExternalIPs) > 0 {
		without := *obj
		without.Spec.ExternalIPs = nil
		obj = &without
	}
	in, problems := apiobject.ParseService(obj, t.allowed)
	in.Balancing, problems = t.balancing.method(in.Balancing, problems)
	if in.PreserveDestination = in.PreserveDestination && t.balancing.Preserves; in.PreserveDestination {
		in.External = proxy.ScopeLocal // An endpoint on another node could not reply from the destination.
	}
	return &service{in, name, obj.CreationTimestamp.Unix(), serviceObject(name).problems(problems)}
}

func (s *service) isClusterIP(a netip.Addr) bool {
	of := s.Addresses[proxy.FamilyOf(a)]
	return len(of) > 0 && of[0].Addr == a
}

// portOfFamily is one port of a Service in one family. Each has a row.
type portOfFamily struct {
	service *service
	port    *apiobject.ServicePort
	family  proxy.Family
}

// portsOf returns the ports of a family.
func (s *service) portsOf(f proxy.Family) iter.Seq[portOfFamily] {
	return func(yield func(portOfFamily) bool) {
		if len(s.Addresses[f]) == 0 {
			return
		}
		for i := range s.Ports {
			if !yield(portOfFamily{s, &s.Ports[i], f}) {
				return
			}
		}
	}
}

func (p portOfFamily) key() proxy.PortKey {
	name := proxy.ServicePortName{
		Namespace: p.service.name.Namespace,
		Name:      p.service.name.Name,
		Port:      p.port.Name.Value(),
		Protocol:  p.port.Protocol,
	}
	return proxy.PortKey{ServicePortName: name, Family: p.family}
}

// claims yields the frontends that the port claims, and the port as their claimant.
func (p portOfFamily) claims() iter.Seq2[claim, claimant] {
	return func(yield func(claim, claimant) bool) {
		for _, a := range p.service.Addresses[p.family] {
			by := claimant{p.service, p.port, a.Kind, a.Index}
			if !yield(claim{netip.AddrPortFrom(a.Addr, p.port.Port), p.port.Protocol}, by) {
				return
			}
		}
		if p.port.NodePort != 0 {
			onNode := netip.AddrPortFrom(p.family.Unspecified(), p.port.NodePort)
			yield(claim{onNode, p.port.Protocol}, claimant{p.service, p.port, proxy.NodePort, p.port.Index})
		}
	}
}
