package resolve

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// otherProxyLabel gives a Service to another proxy.
const otherProxyLabel = "service.kubernetes.io/service-proxy-name"

// What the API server fills in, and what it allows.
const (
	defaultAffinitySeconds = 10800
	maxAffinitySeconds     = 86400
)

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

	healthCheck uint16 // where the node answers for it; 0: nowhere

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
	index int // in the list it came from
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

// draft is what a row is made from: one port of a Service in one family.
type draft struct {
	service *service
	port    *servicePort
	family  proxy.Family
}

// drafts calls yield for all rows a family has.
func (s *service) drafts(f proxy.Family, yield func(draft)) {
	if len(s.addresses[f]) == 0 {
		return
	}
	for i := range s.ports {
		yield(draft{s, &s.ports[i], f})
	}
}

// key returns the row's identity.
func (dr draft) key() proxy.PortKey {
	name := proxy.ServicePortName{
		Namespace: dr.service.name.Namespace,
		Name:      dr.service.name.Name,
		Port:      dr.port.name.Value(),
		Protocol:  dr.port.protocol,
	}
	return proxy.PortKey{ServicePortName: name, Family: dr.family}
}

// claims calls yield for everything the row wants to be reached by.
func (dr draft) claims(yield func(claim, claimant)) {
	p := dr.port
	for _, a := range dr.service.addresses[dr.family] {
		yield(claim{netip.AddrPortFrom(a.addr, p.port), p.protocol}, claimant{dr.service, p, a.kind, a.index})
	}
	if p.nodePort != 0 {
		onNode := netip.AddrPortFrom(dr.family.Unspecified(), p.nodePort)
		yield(claim{onNode, p.protocol}, claimant{dr.service, p, proxy.NodePort, p.index})
	}
}

// readService returns the record of a Service, nil if it has none: it is
// headless, only a DNS name, or another proxy's.
func readService(name types.NamespacedName, obj *v1.Service, ignoreExternalIPs bool) *service {
	spec := &obj.Spec
	_, others := obj.Labels[otherProxyLabel]
	headless := spec.ClusterIP == v1.ClusterIPNone || slices.Contains(spec.ClusterIPs, v1.ClusterIPNone)
	if others || headless || spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	r := serviceReader{obj: obj, ignoreExternalIPs: ignoreExternalIPs, report: report{object: object{kindService, name}}}
	s := &service{
		name:     name,
		created:  obj.CreationTimestamp.Unix(),
		ports:    r.ports(),
		external: externalScope(spec),
		affinity: r.affinity(),
	}
	s.addresses[proxy.IPv4], s.addresses[proxy.IPv6] = r.addresses()
	s.ranges, s.unreadable = r.ranges()
	s.healthCheck = r.healthCheckPort()
	if spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal {
		s.internal = proxy.ScopeLocal
	}
	s.problems = r.problems
	return s
}

// externalScope returns the external policy. It holds only for Services that
// are meant to be reached from outside.
func externalScope(spec *v1.ServiceSpec) proxy.Scope {
	outside := spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0
	if outside && spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		return proxy.ScopeLocal
	}
	return proxy.ScopeCluster
}

// serviceReader reads the parts of a Service and notes what is wrong.
type serviceReader struct {
	obj               *v1.Service
	ignoreExternalIPs bool
	report
}

func (r *serviceReader) ports() []servicePort {
	hasNodePorts := r.obj.Spec.Type == v1.ServiceTypeNodePort || r.obj.Spec.Type == v1.ServiceTypeLoadBalancer
	ports := make([]servicePort, 0, len(r.obj.Spec.Ports))
	for i := range r.obj.Spec.Ports {
		in := &r.obj.Spec.Ports[i]
		protocol, err := parseProtocol(in.Protocol)
		if err != nil {
			r.add(indexed("spec.ports", i, ".protocol"), "%v", err)
			continue
		}
		port, err := parsePort(in.Port)
		if err != nil {
			r.add(indexed("spec.ports", i, ".port"), "%v", err)
			continue
		}
		p := servicePort{name: unique.Make(in.Name), protocol: protocol, port: port, index: i}
		if slices.ContainsFunc(ports, func(o servicePort) bool { return o.name == p.name && o.protocol == p.protocol }) {
			r.add(indexed("spec.ports", i, ".name"), "%q is already the name of another %v port", in.Name, protocol)
			continue
		}
		if hasNodePorts && in.NodePort != 0 {
			if p.nodePort, err = parsePort(in.NodePort); err != nil {
				r.add(indexed("spec.ports", i, ".nodePort"), "%v", err)
			}
		}
		ports = append(ports, p)
	}
	return ports
}

// affinity returns how long a client is remembered.
func (r *serviceReader) affinity() time.Duration {
	spec := &r.obj.Spec
	if spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int32(defaultAffinitySeconds)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if n := *c.ClientIP.TimeoutSeconds; n >= 1 && n <= maxAffinitySeconds {
			seconds = n
		} else {
			r.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not from 1 to %d: %d is used",
				n, maxAffinitySeconds, defaultAffinitySeconds)
		}
	}
	return time.Duration(seconds) * time.Second
}

// ranges reads the source ranges, and says whether some could not be read.
func (r *serviceReader) ranges() ([]netip.Prefix, bool) {
	var out []netip.Prefix
	unreadable := false
	for i, s := range r.obj.Spec.LoadBalancerSourceRanges {
		p, err := parsePrefix(strings.TrimSpace(s))
		if err != nil {
			r.add(indexed(rangesField, i, ""), "%v", err)
			unreadable = true
			continue
		}
		out = append(out, p)
	}
	return out, unreadable
}
