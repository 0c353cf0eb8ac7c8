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

// endpoint is one address of a slice.
type endpoint struct {
	addr  netip.Addr
	zones []unique.Handle[string] // its zone hints
	flags flags
}

// flags are the boolean properties of an endpoint.
type flags uint8

const (
	ready       flags = 1 << iota
	serving           // accepts connections, whether ready or not
	terminating       // its pod is being deleted
	local             // on this node
	nodeUnknown       // the slice names no node
	nodeHinted        // has node hints
	forThisNode       // a node hint names this node
)

func (f flags) has(all flags) bool { return f&all == all }

func (f *flags) set(flag flags, on bool) {
	if on {
		*f |= flag
	}
}

func (e endpoint) equal(o endpoint) bool {
	return e.addr == o.addr && e.flags == o.flags && slices.Equal(e.zones, o.zones)
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

// parse returns the record of a slice, relative to this node. It is nil if the slice is
// not used: it belongs to no Service, or its addresses are DNS names.
func (t *EndpointsChangeTracker) parse(name types.NamespacedName, obj *discoveryv1.EndpointSlice) *endpointSlice {
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
		s.endpoints = append(s.endpoints, newEndpoint(addr, in, t.nodeName))
	})
	s.Weight, problems = t.balancing.weight(s.Weight, problems)
	s.problems = sliceObject(name).problems(problems)
	return s
}

func newEndpoint(addr netip.Addr, in *discoveryv1.Endpoint, nodeName string) endpoint {
	e := endpoint{addr: addr}
	f, c, node := &e.flags, &in.Conditions, ptr.Deref(in.NodeName, "")
	f.set(ready, ptr.Deref(c.Ready, true))
	f.set(serving, ptr.Deref(c.Serving, true))
	f.set(terminating, ptr.Deref(c.Terminating, false))
	f.set(nodeUnknown, node == "")
	f.set(local, node != "" && node == nodeName)
	if in.Hints == nil {
		return e
	}
	f.set(nodeHinted, len(in.Hints.ForNodes) > 0)
	for _, n := range in.Hints.ForNodes {
		f.set(forThisNode, n.Name == nodeName)
	}
	for _, z := range in.Hints.ForZones {
		e.zones = append(e.zones, unique.Make(z.Name))
	}
	return e
}
