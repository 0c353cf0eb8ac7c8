package apiobject

import (
	"net/netip"
	"unique"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/proxy"
)

// EndpointSlice is what all endpoints of an EndpointSlice have in common.
type EndpointSlice struct {
	Family proxy.Family
	Weight uint16 // of each endpoint; 0 counts as 1
	Ports  []EndpointPort
}

// EndpointPort is a port of all endpoints of a slice.
type EndpointPort struct {
	Name     unique.Handle[string]
	Protocol proxy.Protocol
	Port     uint16
}

// UseEndpoint is called with an endpoint that can be used, and its address.
type UseEndpoint func(*discoveryv1.Endpoint, netip.Addr)

// ParseEndpointSlice parses an EndpointSlice from an API server. It calls use for each
// endpoint that can be used.
func ParseEndpointSlice(obj *discoveryv1.EndpointSlice, use UseEndpoint) (EndpointSlice, []Problem) {
	p := parser{}
	s := p.endpointSlice(obj, use)
	return s, p.problems
}

func (p *parser) endpointSlice(obj *discoveryv1.EndpointSlice, use UseEndpoint) (s EndpointSlice) {
	const label = discoveryv1.LabelServiceName
	service, at := obj.Labels[label], field("addressType")
	switch {
	case service == "" && p.strict:
		p.add(Invalid, field("metadata.labels."+label), "is missing, so the slice belongs to no Service")
	case service == "":
	case obj.AddressType == discoveryv1.AddressTypeFQDN:
		p.note(at, "FQDN is not supported: the slice is ignored")
	case obj.AddressType == "":
		p.add(Invalid, at, "is missing")
	case oneOf(p, at, obj.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6) != "":
		if obj.AddressType == discoveryv1.AddressTypeIPv6 {
			s.Family = proxy.IPv6
		}
		s.Weight = p.weight(obj)
		s.Ports = p.endpointPorts(obj)
		p.endpointAddresses(obj, s.Family, use)
	}
	return s
}

func (p *parser) endpointPorts(obj *discoveryv1.EndpointSlice) []EndpointPort {
	out := make([]EndpointPort, 0, len(obj.Ports))
	for i, in := range obj.Ports {
		at := func(name string) path { return path{"ports", i, name} }
		name, protocol := ptr.Deref(in.Name, ""), p.protocol(at(".protocol"), ptr.Deref(in.Protocol, ""))
		p.portName(at(".name"), name)
		if in.Port == nil {
			// No port number means all ports, which does not match any Service port.
			p.note(at(".port"), "is missing: the port is ignored")
		} else if port := p.port(at(".port"), *in.Port); port != 0 && protocol != 0 {
			out = append(out, EndpointPort{unique.Make(name), protocol, port})
		}
	}
	return out
}

// endpointAddresses parses the first address of each endpoint. The API gives the others no
// meaning.
func (p *parser) endpointAddresses(obj *discoveryv1.EndpointSlice, family proxy.Family, use UseEndpoint) {
	if len(obj.Endpoints) == 0 {
		p.note(field("endpoints"), "is empty")
		return
	}
	used := 0
	for i := range obj.Endpoints {
		in := &obj.Endpoints[i]
		if len(in.Addresses) == 0 {
			p.add(Omitted, path{"endpoints", i, ".addresses"}, "is empty; the endpoint is left out")
			continue
		}
		addr, err := p.endpointAddr(in.Addresses[0], family)
		if err != nil {
			p.add(Omitted, path{"endpoints", i, ".addresses[0]"}, "%v; the endpoint is left out", err)
			continue
		}
		use(in, addr)
		used++
	}
	if p.strict && used == 0 {
		// A slice without any valid endpoint is most likely a mistake, so its last version
		// should stay in force.
		p.add(Invalid, field("endpoints"), "none of the %d endpoints can be used", len(obj.Endpoints))
	}
}
