package resolve

import (
	"net/netip"
	"slices"
	"strings"
	"unique"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// endpointSlice is what is kept of an EndpointSlice. It is immutable.
type endpointSlice struct {
	name      types.NamespacedName
	service   types.NamespacedName
	family    proxy.Family
	ports     []slicePort
	endpoints []endpoint
	problems  []Problem
}

// slicePort is one port that all endpoints of a slice have.
type slicePort struct {
	name     unique.Handle[string]
	protocol proxy.Protocol
	port     uint16
}

// endpoint is one address of a slice. Of its node only the relation to ours
// is kept.
type endpoint struct {
	addr   netip.Addr
	zones  []unique.Handle[string] // its zone hints
	traits traits
}

// traits are the yes-or-no properties of an endpoint.
type traits uint8

const (
	ready       traits = 1 << iota
	serving            // answers, whether ready or not
	terminating        // its pod is going away
	local              // on this node
	nodeUnknown
	nodeHinted  // has node hints
	forThisNode // one of them names this node
)

func (t traits) has(all traits) bool { return t&all == all }

func (t *traits) set(what traits, on bool) {
	if on {
		*t |= what
	}
}

func (e endpoint) equal(o endpoint) bool {
	return e.addr == o.addr && e.traits == o.traits && slices.Equal(e.zones, o.zones)
}

func (s *endpointSlice) equal(o *endpointSlice) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.name == o.name && s.service == o.service && s.family == o.family &&
		slices.Equal(s.ports, o.ports) &&
		slices.EqualFunc(s.endpoints, o.endpoints, endpoint.equal) &&
		slices.Equal(s.problems, o.problems)
}

// read returns the record of a slice, as seen from this node, nil if it has
// none: it belongs to no Service, or has DNS names for addresses.
func (t *EndpointsChangeTracker) read(name types.NamespacedName, obj *discoveryv1.EndpointSlice) *endpointSlice {
	if obj.Labels[discoveryv1.LabelServiceName] == "" || obj.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	in := &t.parsed
	problems := in.Parse(obj)
	s := &endpointSlice{
		name:      name,
		service:   types.NamespacedName{Namespace: name.Namespace, Name: strings.Clone(in.Service)},
		ports:     make([]slicePort, 0, len(in.Ports)),
		endpoints: make([]endpoint, 0, len(in.Addresses)),
		problems:  sliceObject(name).problems(problems),
	}
	if in.Family == v1.IPv6Protocol {
		s.family = proxy.IPv6
	}
	for _, p := range in.Ports {
		s.ports = append(s.ports, slicePort{unique.Make(p.Name), protocolOf(p.Protocol), p.Port})
	}
	for i, addr := range in.Addresses {
		if addr.IsValid() {
			s.endpoints = append(s.endpoints, readEndpoint(addr, &obj.Endpoints[i], t.nodeName))
		}
	}
	return s
}

func readEndpoint(addr netip.Addr, in *discoveryv1.Endpoint, nodeName string) endpoint {
	e := endpoint{addr: addr}
	t, c := &e.traits, &in.Conditions
	t.set(ready, c.Ready == nil || *c.Ready)
	t.set(serving, c.Serving == nil || *c.Serving)
	t.set(terminating, c.Terminating != nil && *c.Terminating)
	known := in.NodeName != nil && *in.NodeName != ""
	t.set(nodeUnknown, !known)
	t.set(local, known && *in.NodeName == nodeName)
	if in.Hints == nil {
		return e
	}
	t.set(nodeHinted, len(in.Hints.ForNodes) > 0)
	for _, n := range in.Hints.ForNodes {
		t.set(forThisNode, n.Name == nodeName)
	}
	for _, z := range in.Hints.ForZones {
		e.zones = append(e.zones, unique.Make(z.Name))
	}
	return e
}
