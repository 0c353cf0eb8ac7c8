package manifest

import (
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/source"
)

// maxInterned bounds the table of shared strings. Node names come and go with
// an autoscaler, so a table that only grew would be a slow leak; starting over
// costs one round of new copies.
const maxInterned = 1 << 16

// trimmer copies objects without the fields that nobody reads, so that what is
// kept of a folder is as small as it can be. Copies share strings and pointers
// with each other and none with the original, so nothing of a large decoded
// list stays alive. It may be used by several goroutines.
type trimmer struct {
	yes, no        *bool
	tcp, udp, sctp *v1.Protocol

	mu      sync.Mutex
	strings map[string]*string
}

// newTrimmer returns a trimmer with an empty table of shared strings.
func newTrimmer() *trimmer {
	return &trimmer{
		yes: new(true), no: new(false),
		tcp: new(v1.ProtocolTCP), udp: new(v1.ProtocolUDP), sctp: new(v1.ProtocolSCTP),
		strings: map[string]*string{},
	}
}

// Service returns what is read of a Service.
func (t *trimmer) Service(in *v1.Service) *v1.Service {
	out := &v1.Service{ObjectMeta: t.meta(&in.ObjectMeta)}
	out.CreationTimestamp = in.CreationTimestamp
	out.Labels = t.pick(in.Labels, source.LabelServiceProxyName, source.LabelHeadless)
	out.Spec = v1.ServiceSpec{
		Type:                     v1.ServiceType(t.intern(string(in.Spec.Type))),
		ClusterIP:                strings.Clone(in.Spec.ClusterIP),
		ExternalIPs:              cloneStrings(in.Spec.ExternalIPs),
		SessionAffinity:          v1.ServiceAffinity(t.intern(string(in.Spec.SessionAffinity))),
		LoadBalancerSourceRanges: cloneStrings(in.Spec.LoadBalancerSourceRanges),
		ExternalTrafficPolicy:    v1.ServiceExternalTrafficPolicy(t.intern(string(in.Spec.ExternalTrafficPolicy))),
		HealthCheckNodePort:      in.Spec.HealthCheckNodePort,
		SessionAffinityConfig:    in.Spec.SessionAffinityConfig.DeepCopy(),
		IPFamilies:               t.families(in.Spec.IPFamilies),
	}
	out.Spec.ClusterIPs = cloneClusterIPs(in.Spec.ClusterIPs, out.Spec.ClusterIP)
	if p := in.Spec.InternalTrafficPolicy; p != nil {
		out.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicy(t.intern(string(*p))))
	}
	for i := range in.Spec.Ports {
		p := &in.Spec.Ports[i]
		out.Spec.Ports = append(out.Spec.Ports, v1.ServicePort{
			Name: t.intern(p.Name), Protocol: v1.Protocol(t.intern(string(p.Protocol))), Port: p.Port, NodePort: p.NodePort,
		})
	}
	out.Spec.Ports = slices.Clip(out.Spec.Ports)
	for _, ingress := range in.Status.LoadBalancer.Ingress {
		if ingress.IP == "" {
			continue // A host name leads to no rule.
		}
		kept := v1.LoadBalancerIngress{IP: strings.Clone(ingress.IP)}
		if ingress.IPMode != nil {
			kept.IPMode = new(v1.LoadBalancerIPMode(t.intern(string(*ingress.IPMode))))
		}
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress, kept)
	}
	return out
}

// EndpointSlice returns what is read of an EndpointSlice.
func (t *trimmer) EndpointSlice(in *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  t.meta(&in.ObjectMeta),
		AddressType: discoveryv1.AddressType(t.intern(string(in.AddressType))),
	}
	out.Labels = t.pick(in.Labels, discoveryv1.LabelServiceName, source.LabelHeadless)
	if at, ok := in.Annotations[v1.EndpointsLastChangeTriggerTime]; ok {
		out.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: strings.Clone(at)}
	}
	if len(in.Endpoints) > 0 {
		out.Endpoints = t.endpoints(in.Endpoints)
	}
	for i := range in.Ports {
		p := &in.Ports[i]
		kept := discoveryv1.EndpointPort{Name: t.internPointer(p.Name), Protocol: t.protocol(p.Protocol)}
		if p.Port != nil {
			kept.Port = new(*p.Port)
		}
		out.Ports = append(out.Ports, kept)
	}
	out.Ports = slices.Clip(out.Ports)
	return out
}

func (t *trimmer) endpoints(in []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	out := make([]discoveryv1.Endpoint, len(in))
	// One array holds all addresses: a slice of a hundred endpoints would
	// otherwise be a hundred small allocations more.
	addresses := make([]string, len(in))
	var hints *discoveryv1.EndpointHints
	for i := range in {
		ep := &in[i]
		if len(ep.Addresses) > 0 {
			addresses[i] = strings.Clone(ep.Addresses[0])
			out[i].Addresses = addresses[i : i+1 : i+1]
		}
		out[i].Conditions = discoveryv1.EndpointConditions{
			Ready:       t.boolean(ep.Conditions.Ready),
			Serving:     t.boolean(ep.Conditions.Serving),
			Terminating: t.boolean(ep.Conditions.Terminating),
		}
		out[i].NodeName = t.internPointer(ep.NodeName)
		if ep.Hints != nil {
			if hints == nil || !sameHints(hints, ep.Hints) {
				hints = t.hints(ep.Hints)
			}
			out[i].Hints = hints
		}
	}
	return out
}

// Node returns what is read of a Node.
func (t *trimmer) Node(in *v1.Node) *v1.Node {
	out := &v1.Node{ObjectMeta: t.meta(&in.ObjectMeta)}
	out.DeletionTimestamp = in.DeletionTimestamp.DeepCopy()
	out.Labels = t.pick(in.Labels, v1.LabelTopologyZone)
	out.Spec.PodCIDRs = cloneStrings(in.Spec.PodCIDRs)
	for _, taint := range in.Spec.Taints {
		out.Spec.Taints = append(out.Spec.Taints, v1.Taint{
			Key:    strings.Clone(taint.Key),
			Value:  strings.Clone(taint.Value),
			Effect: v1.TaintEffect(strings.Clone(string(taint.Effect))),
		})
	}
	for _, a := range in.Status.Addresses {
		out.Status.Addresses = append(out.Status.Addresses, v1.NodeAddress{
			Type: v1.NodeAddressType(strings.Clone(string(a.Type))), Address: strings.Clone(a.Address),
		})
	}
	return out
}

// ServiceCIDR returns what is read of a ServiceCIDR.
func (t *trimmer) ServiceCIDR(in *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	out := &networkingv1.ServiceCIDR{ObjectMeta: t.meta(&in.ObjectMeta)}
	out.Spec.CIDRs = cloneStrings(in.Spec.CIDRs)
	return out
}

func (t *trimmer) meta(in *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:            strings.Clone(in.Name),
		Namespace:       t.intern(in.Namespace),
		UID:             types.UID(strings.Clone(string(in.UID))),
		ResourceVersion: strings.Clone(in.ResourceVersion),
	}
}

// pick returns the named labels that are set, nil if none is.
func (t *trimmer) pick(labels map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		if value, ok := labels[key]; ok {
			if out == nil {
				out = make(map[string]string, 1)
			}
			out[key] = t.intern(value)
		}
	}
	return out
}

// cloneClusterIPs copies the list and lets its first entry share the bytes of the
// singular field, which by the API's rules says the same.
func cloneClusterIPs(in []string, first string) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, len(in))
	for i, ip := range in {
		if ip == first {
			out[i] = first
		} else {
			out[i] = strings.Clone(ip)
		}
	}
	return out
}

func (t *trimmer) families(in []v1.IPFamily) []v1.IPFamily {
	if len(in) == 0 {
		return nil
	}
	out := make([]v1.IPFamily, len(in))
	for i, f := range in {
		out[i] = v1.IPFamily(t.intern(string(f)))
	}
	return out
}

func (t *trimmer) hints(in *discoveryv1.EndpointHints) *discoveryv1.EndpointHints {
	out := &discoveryv1.EndpointHints{}
	for _, z := range in.ForZones {
		out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: t.intern(z.Name)})
	}
	for _, n := range in.ForNodes {
		out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: t.intern(n.Name)})
	}
	return out
}

func sameHints(a, b *discoveryv1.EndpointHints) bool {
	return slices.Equal(a.ForZones, b.ForZones) && slices.Equal(a.ForNodes, b.ForNodes)
}

func (t *trimmer) boolean(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return t.yes
	}
	return t.no
}

func (t *trimmer) protocol(p *v1.Protocol) *v1.Protocol {
	if p == nil {
		return nil
	}
	switch *p {
	case v1.ProtocolTCP:
		return t.tcp
	case v1.ProtocolUDP:
		return t.udp
	case v1.ProtocolSCTP:
		return t.sctp
	}
	return new(v1.Protocol(t.intern(string(*p))))
}

func (t *trimmer) intern(s string) string {
	return *t.internPointer(&s)
}

// internPointer returns the one shared pointer for this text, nil for nil.
func (t *trimmer) internPointer(s *string) *string {
	if s == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if shared, ok := t.strings[*s]; ok {
		return shared
	}
	if len(t.strings) >= maxInterned {
		clear(t.strings)
	}
	own := strings.Clone(*s)
	t.strings[own] = &own
	return &own
}

func cloneStrings(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = strings.Clone(s)
	}
	return out
}
