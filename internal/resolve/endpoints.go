package resolve

import (
	"net/netip"
	"slices"
	"strings"
	"unique"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"sluice/internal/apiobject"
)

// endpointSlice is what is kept of an EndpointSlice. It is immutable.
type endpointSlice struct {
	name      types.NamespacedName
	service   types.NamespacedName
	endpoints []endpoint
	problems  []Problem
	apiobject.EndpointSlice
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
	return s.name == o.name && s.service == o.service && s.Family == o.Family && s.Weight == o.Weight &&
		slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.endpoints, o.endpoints, endpoint.equal) &&
		slices.Equal(s.problems, o.problems)
}

// read returns the record of a slice, as seen from this node, nil if it has
// none: it belongs to no Service, or has DNS names for addresses.
func (t *EndpointsChangeTracker) read(name types.NamespacedName, obj *discoveryv1.EndpointSlice) *endpointSlice {
	service := obj.Labels[discoveryv1.LabelServiceName]
	if service == "" || obj.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &endpointSlice{
		name:      name,
		service:   types.NamespacedName{Namespace: name.Namespace, Name: strings.Clone(service)},
		endpoints: make([]endpoint, 0, len(obj.Endpoints)),
	}
	var problems []apiobject.Problem
	s.EndpointSlice, problems = apiobject.ParseEndpointSlice(obj, func(in *discoveryv1.Endpoint, addr netip.Addr) {
		s.endpoints = append(s.endpoints, readEndpoint(addr, in, t.nodeName))
	})
	s.Weight, problems = t.balancing.weight(s.Weight, problems)
	s.problems = sliceObject(name).problems(problems)
	return s
}

func readEndpoint(addr netip.Addr, in *discoveryv1.Endpoint, nodeName string) endpoint {
	e := endpoint{addr: addr}
	t, c, node := &e.traits, &in.Conditions, ptr.Deref(in.NodeName, "")
	t.set(ready, ptr.Deref(c.Ready, true))
	t.set(serving, ptr.Deref(c.Serving, true))
	t.set(terminating, ptr.Deref(c.Terminating, false))
	t.set(nodeUnknown, node == "")
	t.set(local, node != "" && node == nodeName)
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
