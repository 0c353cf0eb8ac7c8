package resolve

import (
	"net/netip"
	"slices"
	"strings"
	"unique"

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
	unplaced           // its node is not known
	nodeHinted         // has node hints
	forThisNode        // one of them names this node
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

// readSlice returns the record of a slice, as seen from a node, nil if it has
// none: it belongs to no Service, or has DNS names for addresses.
func readSlice(name types.NamespacedName, obj *discoveryv1.EndpointSlice, nodeName string) *endpointSlice {
	owner := obj.Labels[discoveryv1.LabelServiceName]
	if owner == "" || obj.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	r := sliceReader{obj: obj, nodeName: nodeName, report: report{object: object{kindEndpointSlice, name}}}
	s := &endpointSlice{name: name, service: types.NamespacedName{Namespace: name.Namespace, Name: strings.Clone(owner)}}
	r.read(s)
	s.problems = r.problems
	return s
}

// sliceReader reads the parts of an EndpointSlice and notes what is wrong.
type sliceReader struct {
	obj      *discoveryv1.EndpointSlice
	nodeName string
	report
}

func (r *sliceReader) read(s *endpointSlice) {
	family, err := parseFamily(string(r.obj.AddressType))
	if err != nil {
		r.add("addressType", "%q is %v", r.obj.AddressType, err)
		return
	}
	s.family = family
	s.ports = r.ports()
	s.endpoints = r.endpoints(family)
}

func (r *sliceReader) ports() []slicePort {
	ports := make([]slicePort, 0, len(r.obj.Ports))
	for i := range r.obj.Ports {
		in := &r.obj.Ports[i]
		if in.Name == nil || in.Port == nil {
			continue // a slice without numbers stands for all ports, which no Service port can mean
		}
		p := slicePort{name: unique.Make(*in.Name), protocol: proxy.TCP}
		var err error
		if p.port, err = parsePort(*in.Port); err != nil {
			r.add(indexed("ports", i, ".port"), "%v", err)
			continue
		}
		if in.Protocol != nil {
			if p.protocol, err = parseProtocol(*in.Protocol); err != nil {
				r.add(indexed("ports", i, ".protocol"), "%v", err)
				continue
			}
		}
		ports = append(ports, p)
	}
	return ports
}

func (r *sliceReader) endpoints(f proxy.Family) []endpoint {
	list := make([]endpoint, 0, len(r.obj.Endpoints))
	for i := range r.obj.Endpoints {
		in := &r.obj.Endpoints[i]
		if len(in.Addresses) == 0 {
			r.add(indexed("endpoints", i, ".addresses"), "empty")
			continue
		}
		addr, err := parseEndpointAddr(in.Addresses[0], f)
		if err != nil {
			r.add(indexed("endpoints", i, ".addresses[0]"), "%v", err)
			continue
		}
		e := endpoint{addr: addr, traits: r.traits(in)}
		if in.Hints != nil {
			for _, z := range in.Hints.ForZones {
				e.zones = append(e.zones, unique.Make(z.Name))
			}
		}
		list = append(list, e)
	}
	return list
}

func (r *sliceReader) traits(in *discoveryv1.Endpoint) traits {
	var t traits
	c := &in.Conditions
	t.set(ready, c.Ready == nil || *c.Ready)
	t.set(serving, c.Serving == nil || *c.Serving)
	t.set(terminating, c.Terminating != nil && *c.Terminating)
	placed := in.NodeName != nil && *in.NodeName != ""
	t.set(unplaced, !placed)
	t.set(local, placed && *in.NodeName == r.nodeName)
	if in.Hints != nil {
		t.set(nodeHinted, len(in.Hints.ForNodes) > 0)
		for _, n := range in.Hints.ForNodes {
			t.set(forThisNode, n.Name == r.nodeName)
		}
	}
	return t
}
