package apiobject

import (
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// maxAffinitySeconds is the longest affinity the API allows: one day.
const maxAffinitySeconds = 86400

// Service is what can be used of a Service.
type Service struct {
	Ports       []ServicePort // each name once in a protocol
	ClusterIPs  []Address     // at most one of each family
	Ingress     []Address     // addresses of load balancers that leave the work to nodes
	ExternalIPs []Address
	Affinity    time.Duration // how long a client is remembered; 0: not at all

	SourceRanges     []netip.Prefix
	UnreadableRanges bool // there are more, which cannot be read

	HealthCheckPort uint16 // 0: none
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Index    int // in spec.ports
	Name     string
	Protocol v1.Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// Address is one address of a Service.
type Address struct {
	Addr  netip.Addr
	Index int // in the list it is from; -1: it is from spec.clusterIP
}

// ParseService reads a Service of an API server. One that has no address of its
// own (it is headless or a DNS name) has no ClusterIPs.
func ParseService(obj *v1.Service) (Service, []Problem) {
	p := parser{}
	return p.service(obj), p.problems
}

// Headless reports whether a Service has no address and never gets one.
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
	s := Service{
		Affinity:        p.affinity(spec),
		ClusterIPs:      p.clusterIPs(spec),
		Ports:           p.servicePorts(spec),
		HealthCheckPort: p.optionalPort(field("spec.healthCheckNodePort"), spec.HealthCheckNodePort),
	}
	ranges, complete := p.ranges("spec.loadBalancerSourceRanges", spec.LoadBalancerSourceRanges)
	s.SourceRanges, s.UnreadableRanges = ranges, !complete
	for i, text := range spec.ExternalIPs {
		if addr := p.externalAddr(path{"spec.externalIPs", i, ""}, text, s.ClusterIPs); addr.IsValid() {
			s.ExternalIPs = append(s.ExternalIPs, Address{addr, i})
		}
	}
	for i, in := range obj.Status.LoadBalancer.Ingress {
		mode := v1.LoadBalancerIPModeVIP
		if in.IPMode != nil {
			mode = oneOf(p, path{"status.loadBalancer.ingress", i, ".ipMode"}, *in.IPMode,
				v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		}
		if in.IP == "" {
			continue // a host name leads to no rule
		}
		addr := p.externalAddr(path{"status.loadBalancer.ingress", i, ".ip"}, in.IP, s.ClusterIPs)
		// A load balancer in proxy mode must see the traffic itself.
		if addr.IsValid() && mode == v1.LoadBalancerIPModeVIP {
			s.Ingress = append(s.Ingress, Address{addr, i})
		}
	}
	return s
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
				"%d is not a time (1 to %d seconds)", n, maxAffinitySeconds)
		}
	}
	return time.Duration(seconds) * time.Second
}

func (p *parser) clusterIPs(spec *v1.ServiceSpec) []Address {
	texts, singular := spec.ClusterIPs, len(spec.ClusterIPs) == 0
	switch {
	case spec.Type == v1.ServiceTypeExternalName || Headless(spec):
		return nil
	case singular && spec.ClusterIP == "":
		p.add(Note, field("spec.clusterIP"), "is missing, so nothing is forwarded; only an API server allocates one")
		return nil
	case singular:
		texts = []string{spec.ClusterIP}
	case p.strict && spec.ClusterIP != "" && spec.ClusterIP != texts[0]:
		p.add(Invalid, path{"spec.clusterIPs", 0, ""}, "%.60q is not spec.clusterIP %.60q", texts[0], spec.ClusterIP)
	}
	families := slices.Clone(spec.IPFamilies)
	for i := range families {
		families[i] = oneOf(p, path{"spec.ipFamilies", i, ""}, families[i], v1.IPv4Protocol, v1.IPv6Protocol)
	}
	out := make([]Address, 0, len(texts))
	for i, text := range texts {
		at, index := path{"spec.clusterIPs", i, ""}, i
		if singular {
			at, index = field("spec.clusterIP"), -1
		}
		if len(families) > 0 && (i >= len(families) || families[i] == "") {
			continue // its family is not served, or not known
		}
		addr, err := p.parseAddr(text)
		switch family := familyOf(addr); {
		case err != nil:
			p.add(Invalid, at, "%v", err)
		case len(families) > 0 && families[i] != family:
			p.add(Invalid, at, "%v is not an %s address as spec.ipFamilies[%d] says", addr, families[i], i)
		case hasFamily(out, family):
			p.add(Invalid, at, "%v is a second %s address", addr, family)
		default:
			out = append(out, Address{addr.Unmap(), index})
		}
	}
	return out
}

func hasFamily(list []Address, family v1.IPFamily) bool {
	return slices.ContainsFunc(list, func(a Address) bool { return familyOf(a.Addr) == family })
}

// externalAddr reads an address by which a Service is reached from outside. It
// returns none if the text is wrong.
func (p *parser) externalAddr(at path, text string, clusterIPs []Address) netip.Addr {
	addr, err := p.parseAddr(text)
	family := familyOf(addr)
	switch {
	case err != nil:
		p.add(Omitted, at, "%v; it is left out", err)
		return netip.Addr{}
	case p.strict && len(clusterIPs) > 0 && !hasFamily(clusterIPs, family):
		// A Service has no endpoints in a family in which it has no cluster IP.
		p.add(Omitted, at, "%v is an %s address and the Service has no %s cluster IP; it is left out", addr, family, family)
	}
	return addr.Unmap()
}

func (p *parser) servicePorts(spec *v1.ServiceSpec) []ServicePort {
	if len(spec.Ports) == 0 && spec.Type != v1.ServiceTypeExternalName && !Headless(spec) {
		p.note(field("spec.ports"), "is empty: nothing is forwarded")
	}
	out := make([]ServicePort, 0, len(spec.Ports))
	for i := range spec.Ports {
		in := &spec.Ports[i]
		at := func(name string) path { return path{"spec.ports", i, name} }
		port := ServicePort{
			Index: i, Name: in.Name, Port: p.port(at(".port"), in.Port), NodePort: p.optionalPort(at(".nodePort"), in.NodePort),
			Protocol: p.protocol(at(".protocol"), in.Protocol),
		}
		p.portName(at(".name"), in.Name)
		if port.Port == 0 || port.Protocol == "" {
			continue
		}
		if p.strict && in.Name == "" && len(spec.Ports) > 1 {
			p.add(Invalid, at(".name"), "is missing, which only a single port may do")
			continue
		}
		named := slices.IndexFunc(out, func(o ServicePort) bool {
			return o.Name == port.Name && (p.strict || o.Protocol == port.Protocol)
		})
		if named >= 0 {
			p.add(Invalid, at(".name"), "%.60q is the name of spec.ports[%d] too", in.Name, out[named].Index)
			continue
		}
		if p.strict {
			p.samePort(at(".port"), port, out)
		}
		out = append(out, port)
	}
	return out
}

// samePort reports a port that an earlier one has, too.
func (p *parser) samePort(at path, port ServicePort, earlier []ServicePort) {
	for _, o := range earlier {
		if o.Protocol == port.Protocol && o.Port == port.Port {
			p.add(Invalid, at, "%s %d is spec.ports[%d] too", port.Protocol, port.Port, o.Index)
		}
	}
}
