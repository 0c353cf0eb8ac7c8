package apiobject

import (
	"net/netip"
	"slices"
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/proxy"
)

// maxAffinitySeconds is the longest affinity the API allows: one day.
const maxAffinitySeconds = 86400

// Service has the parts of a Service that are used.
type Service struct {
	Ports []ServicePort // without two of the same name and protocol
	// Addresses has the addresses of each family, without duplicates, the ClusterIP
	// first. A family without a ClusterIP has none.
	Addresses           [len(proxy.Families)][]Address
	Internal, External  proxy.Scope
	PreserveDestination bool // the annotation is set
	Balancing           proxy.Balancing
	Affinity            time.Duration // the session affinity timeout; 0 means no session affinity

	SourceRanges     []netip.Prefix // spec.loadBalancerSourceRanges of both families
	UnreadableRanges bool           // some of them cannot be parsed and are left out

	HealthCheckPort uint16 // the health-check node port; 0 if it has none
}

type ServicePort struct {
	Name     unique.Handle[string]
	Protocol proxy.Protocol
	Port     uint16
	NodePort uint16 // 0: none
	Index    int    // in spec.ports
}

type Address struct {
	Addr  netip.Addr
	Kind  proxy.Kind
	Index int // in the list that has it; -1 if it is spec.clusterIP
}

// ParseService parses a Service from an API server. A headless Service, or one of type
// ExternalName, has no addresses.
func ParseService(obj *v1.Service, allowed Allowed) (Service, []Problem) {
	p := parser{allowed: allowed}
	return p.service(obj), p.problems
}

// Headless reports whether a Service is headless: it never has a ClusterIP.
func Headless(spec *v1.ServiceSpec) bool {
	return spec.ClusterIP == v1.ClusterIPNone || slices.Contains(spec.ClusterIPs, v1.ClusterIPNone)
}

func (p *parser) service(obj *v1.Service) Service {
	spec := &obj.Spec
	if spec.Type != "" {
		oneOf(p, field("spec.type"), spec.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
			v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	}
	if policy := spec.InternalTrafficPolicy; policy != nil {
		oneOf(p, field("spec.internalTrafficPolicy"), *policy,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	}
	if spec.ExternalTrafficPolicy != "" {
		oneOf(p, field("spec.externalTrafficPolicy"), spec.ExternalTrafficPolicy,
			v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	}
	s := Service{Balancing: p.balancing(obj), Affinity: p.affinity(spec), PreserveDestination: obj.Annotations[PreserveDestination] == "true"}
	p.clusterIPs(spec, &s)
	s.Ports = p.servicePorts(spec)
	healthCheck := p.optionalPort(field("spec.healthCheckNodePort"), spec.HealthCheckNodePort)
	ranges, complete := p.ranges("spec.loadBalancerSourceRanges", spec.LoadBalancerSourceRanges)
	s.SourceRanges, s.UnreadableRanges = ranges, !complete
	for i, in := range obj.Status.LoadBalancer.Ingress {
		mode := oneOf(p, path{"status.loadBalancer.ingress", i, ".ipMode"}, ptr.Deref(in.IPMode, v1.LoadBalancerIPModeVIP),
			v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		if in.IP == "" {
			continue // A host name is not used.
		}
		at := path{"status.loadBalancer.ingress", i, ".ip"}
		addr := p.externalAddr(at, in.IP, &s)
		// With ipMode Proxy, traffic has to pass the load balancer itself.
		if mode == v1.LoadBalancerIPModeVIP {
			p.addAddress(&s, at, Address{addr, proxy.LoadBalancer, i})
		}
	}
	for i, text := range spec.ExternalIPs {
		at := path{"spec.externalIPs", i, ""}
		p.addAddress(&s, at, Address{p.externalAddr(at, text, &s), proxy.ExternalIP, i})
	}
	if ptr.Deref(spec.InternalTrafficPolicy, "") == v1.ServiceInternalTrafficPolicyLocal {
		s.Internal = proxy.ScopeLocal
	}
	// The external policy applies only to Services that can be reached from outside.
	if spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && (onNodes(spec) || len(spec.ExternalIPs) > 0) {
		s.External = proxy.ScopeLocal
		if spec.Type == v1.ServiceTypeLoadBalancer {
			s.HealthCheckPort = healthCheck
		}
	}
	return s
}

func onNodes(spec *v1.ServiceSpec) bool {
	return spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer
}

// addAddress adds an address to a Service, unless it is invalid or not allowed, the
// Service has it already, or its family has no ClusterIP.
func (p *parser) addAddress(s *Service, at path, a Address) {
	of := &s.Addresses[proxy.FamilyOf(a.Addr)]
	if !a.Addr.IsValid() || p.addresses[a.Addr] || a.Kind != proxy.ClusterIP && len(*of) == 0 {
		return
	}
	if option := p.allowed.denies(a); option != "" {
		p.add(Omitted, at, "%v is not within --%s; it is left out", a.Addr, option)
		p.problems[len(p.problems)-1].Denied = a.Addr
		return
	}
	if p.addresses == nil {
		p.addresses = map[netip.Addr]bool{}
	}
	p.addresses[a.Addr] = true
	*of = append(*of, a)
}

func (p *parser) affinity(spec *v1.ServiceSpec) time.Duration {
	if spec.SessionAffinity != "" {
		oneOf(p, field("spec.sessionAffinity"), spec.SessionAffinity, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP)
	}
	if spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	seconds := v1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if n := *c.ClientIP.TimeoutSeconds; n >= 1 && n <= maxAffinitySeconds {
			seconds = n
		} else {
			p.add(Invalid, field("spec.sessionAffinityConfig.clientIP.timeoutSeconds"),
				"%d is not a timeout (1 to %d seconds)", n, maxAffinitySeconds)
		}
	}
	return time.Duration(seconds) * time.Second
}

func (p *parser) clusterIPs(spec *v1.ServiceSpec, s *Service) {
	texts, singular := spec.ClusterIPs, len(spec.ClusterIPs) == 0
	switch {
	case spec.Type == v1.ServiceTypeExternalName || Headless(spec):
		return
	case singular && spec.ClusterIP == "":
		p.add(Note, field("spec.clusterIP"), "is missing, so nothing is forwarded; only an API server can allocate one")
		return
	case singular:
		texts = []string{spec.ClusterIP}
	case p.strict && spec.ClusterIP != "" && spec.ClusterIP != texts[0]:
		p.add(Invalid, path{"spec.clusterIPs", 0, ""}, "%.60q is not spec.clusterIP %.60q", texts[0], spec.ClusterIP)
	}
	families := slices.Clone(spec.IPFamilies)
	for i := range families {
		families[i] = oneOf(p, path{"spec.ipFamilies", i, ""}, families[i], v1.IPv4Protocol, v1.IPv6Protocol)
	}
	for i, text := range texts {
		at, index := path{"spec.clusterIPs", i, ""}, i
		if singular {
			at, index = field("spec.clusterIP"), -1
		}
		if len(families) > 0 && (i >= len(families) || families[i] == "") {
			continue // The address has no family, or an invalid one.
		}
		addr, err := p.parseAddr(text)
		switch family := proxy.FamilyOf(addr); {
		case err != nil:
			p.add(Invalid, at, "%v", err)
		case len(families) > 0 && string(families[i]) != family.String():
			p.add(Invalid, at, "%v is not an %s address, but spec.ipFamilies[%d] requires one", addr, families[i], i)
		case len(s.Addresses[family]) > 0:
			p.add(Invalid, at, "%v is a second %v address", addr, family)
		default:
			p.addAddress(s, at, Address{addr.Unmap(), proxy.ClusterIP, index})
		}
	}
}

// externalAddr parses an external address of a Service. It returns the invalid address if
// the text is wrong.
func (p *parser) externalAddr(at path, text string, s *Service) netip.Addr {
	addr, err := p.parseAddr(text)
	family := proxy.FamilyOf(addr)
	switch {
	case err != nil:
		p.add(Omitted, at, "%v; it is left out", err)
		return netip.Addr{}
	case addr.Unmap().IsLoopback():
		// Traffic of the node's processes to themselves would be forwarded to endpoints.
		p.add(Omitted, at, "%v is a loopback address; it is left out", addr)
		return netip.Addr{}
	case p.strict && len(s.Addresses[family]) == 0 && len(s.Addresses[1-family]) > 0:
		// A Service has no endpoints in a family in which it has no ClusterIP.
		p.add(Omitted, at, "%v is an %v address and the Service has no %v ClusterIP; it is left out", addr, family, family)
	}
	return addr.Unmap()
}

func (p *parser) servicePorts(spec *v1.ServiceSpec) []ServicePort {
	if len(spec.Ports) == 0 && spec.Type != v1.ServiceTypeExternalName && !Headless(spec) {
		p.note(field("spec.ports"), "is empty: nothing is forwarded")
	}
	out := make([]ServicePort, 0, len(spec.Ports))
	names := make(map[portID]int, len(spec.Ports)) // the index of each port
	for i := range spec.Ports {
		in := &spec.Ports[i]
		at := func(name string) path { return path{"spec.ports", i, name} }
		port := ServicePort{Name: unique.Make(in.Name), Index: i, Port: p.port(at(".port"), in.Port)}
		nodePort := p.optionalPort(at(".nodePort"), in.NodePort)
		port.Protocol = p.protocol(at(".protocol"), in.Protocol)
		if onNodes(spec) {
			port.NodePort = nodePort
		}
		p.portName(at(".name"), in.Name)
		if port.Port == 0 || port.Protocol == 0 {
			continue
		}
		if p.strict && in.Name == "" && len(spec.Ports) > 1 {
			p.add(Invalid, at(".name"), "is missing; it is optional only for a single port")
			continue
		}
		name := portID{name: in.Name}
		if !p.strict {
			name.protocol = port.Protocol
		}
		if index, taken := names[name]; taken {
			p.add(Invalid, at(".name"), "%.60q is the name of spec.ports[%d] too", in.Name, index)
			continue
		}
		names[name] = i
		if p.strict {
			p.samePort(at(".port"), port, out)
		}
		out = append(out, port)
	}
	return out
}

// portID identifies a port of a Service: by its name, and in objects that older API servers
// accepted also by the protocol. It is 0 in new objects.
type portID struct {
	name     string
	protocol proxy.Protocol
}

// samePort adds a problem if an earlier port has the same number and protocol.
func (p *parser) samePort(at path, port ServicePort, earlier []ServicePort) {
	for _, o := range earlier {
		if o.Protocol == port.Protocol && o.Port == port.Port {
			p.add(Invalid, at, "%v %d is spec.ports[%d] too", port.Protocol, port.Port, o.Index)
		}
	}
}
