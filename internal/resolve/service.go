package resolve

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// otherProxyLabel gives a Service to another proxy.
const otherProxyLabel = "service.kubernetes.io/service-proxy-name"

// service is what is kept of a Service: what rows are made of, and nothing of
// the object itself. It is immutable.
type service struct {
	name       types.NamespacedName
	created    int64 // in Unix seconds, the grain of API times
	ports      []servicePort
	addresses  [len(proxy.Families)][]address // the ClusterIP first; none: the family has no rows
	internal   proxy.Scope
	external   proxy.Scope
	affinity   time.Duration
	ranges     []netip.Prefix // of the LoadBalancer's clients, both families
	unreadable bool           // some range could not be read

	healthCheck uint16 // the port at which the node answers for it; 0: none

	problems []Problem
}

// servicePort is one port of a Service.
type servicePort struct {
	name     unique.Handle[string]
	protocol proxy.Protocol
	port     uint16
	nodePort uint16 // 0: none
	index    int    // in spec.ports
}

// address is one of a Service's addresses. Within a family each appears once.
type address struct {
	addr  netip.Addr
	kind  proxy.Kind
	index int // in the list it came from; -1: in none
}

func (s *service) equal(o *service) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.name == o.name && s.created == o.created && slices.Equal(s.ports, o.ports) &&
		slices.Equal(s.addresses[proxy.IPv4], o.addresses[proxy.IPv4]) &&
		slices.Equal(s.addresses[proxy.IPv6], o.addresses[proxy.IPv6]) &&
		s.internal == o.internal && s.external == o.external && s.affinity == o.affinity &&
		slices.Equal(s.ranges, o.ranges) && s.unreadable == o.unreadable &&
		s.healthCheck == o.healthCheck && slices.Equal(s.problems, o.problems)
}

// readService returns the record of a Service, nil if it has none: it is
// headless, only a DNS name, or another proxy's.
func readService(name types.NamespacedName, obj *v1.Service, ignoreExternalIPs bool) *service {
	_, others := obj.Labels[otherProxyLabel]
	if others || apiobject.Headless(&obj.Spec) || obj.Spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	if ignoreExternalIPs && len(obj.Spec.ExternalIPs) > 0 {
		without := *obj
		without.Spec.ExternalIPs = nil
		obj = &without
	}
	in, problems := apiobject.ParseService(obj)
	// A node port of another type of Service does not count.
	onNodes := obj.Spec.Type == v1.ServiceTypeNodePort || obj.Spec.Type == v1.ServiceTypeLoadBalancer
	s := &service{
		name:       name,
		created:    obj.CreationTimestamp.Unix(),
		ports:      make([]servicePort, 0, len(in.Ports)),
		affinity:   in.Affinity,
		ranges:     in.SourceRanges,
		unreadable: in.UnreadableRanges,
		problems:   serviceObject(name).problems(problems),
	}
	for _, p := range in.Ports {
		port := servicePort{name: unique.Make(p.Name), protocol: protocolOf(p.Protocol), port: p.Port, index: p.Index}
		if onNodes {
			port.nodePort = p.NodePort
		}
		s.ports = append(s.ports, port)
	}
	s.addAddresses(proxy.ClusterIP, in.ClusterIPs)
	s.addAddresses(proxy.LoadBalancer, in.Ingress)
	s.addAddresses(proxy.ExternalIP, in.ExternalIPs)
	if p := obj.Spec.InternalTrafficPolicy; p != nil && *p == v1.ServiceInternalTrafficPolicyLocal {
		s.internal = proxy.ScopeLocal
	}
	// The external policy holds only for Services that are meant to be reached from outside.
	if obj.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && (onNodes || len(obj.Spec.ExternalIPs) > 0) {
		s.external = proxy.ScopeLocal
		// A load balancer has to know which nodes have endpoints.
		if obj.Spec.Type == v1.ServiceTypeLoadBalancer {
			s.healthCheck = in.HealthCheckPort
		}
	}
	return s
}

// addAddresses adds the addresses of families that have rows. One that is named
// twice counts as the kind that comes first.
func (s *service) addAddresses(k proxy.Kind, list []apiobject.Address) {
	for _, a := range list {
		f := proxy.FamilyOf(a.Addr)
		known := slices.ContainsFunc(s.addresses[f], func(o address) bool { return o.addr == a.Addr })
		if !known && (k == proxy.ClusterIP || len(s.addresses[f]) > 0) {
			s.addresses[f] = append(s.addresses[f], address{a.Addr, k, a.Index})
		}
	}
}

func protocolOf(p v1.Protocol) proxy.Protocol {
	switch p {
	case v1.ProtocolTCP:
		return proxy.TCP
	case v1.ProtocolUDP:
		return proxy.UDP
	case v1.ProtocolSCTP:
		return proxy.SCTP
	default:
		panic(fmt.Sprintf("unknown protocol %q", p))
	}
}

// addressField returns the path of a frontend's address in its Service.
func addressField(k proxy.Kind, index int) string {
	switch k {
	case proxy.ClusterIP:
		if index < 0 {
			return "spec.clusterIP"
		}
		return indexed("spec.clusterIPs", index, "")
	case proxy.LoadBalancer:
		return indexed("status.loadBalancer.ingress", index, ".ip")
	case proxy.ExternalIP:
		return indexed("spec.externalIPs", index, "")
	case proxy.NodePort:
		return indexed("spec.ports", index, ".nodePort")
	default:
		panic(fmt.Sprintf("unknown kind %d", uint8(k)))
	}
}

// portOfFamily is what a row is made from: one port of a Service in one family.
type portOfFamily struct {
	service *service
	port    *servicePort
	family  proxy.Family
}

// portsOf returns what the rows of a family are made from.
func (s *service) portsOf(f proxy.Family) iter.Seq[portOfFamily] {
	return func(yield func(portOfFamily) bool) {
		if len(s.addresses[f]) == 0 {
			return
		}
		for i := range s.ports {
			if !yield(portOfFamily{s, &s.ports[i], f}) {
				return
			}
		}
	}
}

// key returns the row's identity.
func (p portOfFamily) key() proxy.PortKey {
	name := proxy.ServicePortName{
		Namespace: p.service.name.Namespace,
		Name:      p.service.name.Name,
		Port:      p.port.name.Value(),
		Protocol:  p.port.protocol,
	}
	return proxy.PortKey{ServicePortName: name, Family: p.family}
}

// claims returns everything the row wants to be reached by, and who wants it.
func (p portOfFamily) claims() iter.Seq2[claim, claimant] {
	return func(yield func(claim, claimant) bool) {
		for _, a := range p.service.addresses[p.family] {
			by := claimant{p.service, p.port, a.kind, a.index}
			if !yield(claim{netip.AddrPortFrom(a.addr, p.port.port), p.port.protocol}, by) {
				return
			}
		}
		if p.port.nodePort != 0 {
			onNode := netip.AddrPortFrom(p.family.Unspecified(), p.port.nodePort)
			yield(claim{onNode, p.port.protocol}, claimant{p.service, p.port, proxy.NodePort, p.port.index})
		}
	}
}
