package apiobject

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// EndpointSlice is what can be used of an EndpointSlice.
type EndpointSlice struct {
	Service string      // the name of the Service it belongs to; empty: none
	Family  v1.IPFamily // empty: its addresses are not IP addresses
	Ports   []EndpointPort
	// Addresses has one for each endpoint; an invalid one is of an endpoint that
	// cannot be used.
	Addresses []netip.Addr
}

// EndpointPort is a port that all endpoints of a slice have.
type EndpointPort struct {
	Name     string
	Protocol v1.Protocol
	Port     uint16
}

// Parse reads an EndpointSlice of an API server into s, whose memory is used
// again: slices change more often than anything else.
func (s *EndpointSlice) Parse(obj *discoveryv1.EndpointSlice) []Problem {
	p := parser{}
	p.endpointSlice(obj, s)
	return p.problems
}

func (p *parser) endpointSlice(obj *discoveryv1.EndpointSlice, s *EndpointSlice) {
	*s = EndpointSlice{
		Service: obj.Labels[discoveryv1.LabelServiceName], Ports: s.Ports[:0], Addresses: s.Addresses[:0],
	}
	switch {
	case s.Service == "" && p.strict:
		p.add(Invalid, field("metadata.labels."+discoveryv1.LabelServiceName), "is missing, so the slice belongs to no Service")
	case s.Service == "":
	case obj.AddressType == discoveryv1.AddressTypeFQDN:
		p.note(field("addressType"), "FQDN is not forwarded to: the slice is ignored")
	case obj.AddressType == "":
		p.add(Invalid, field("addressType"), "is missing")
	default:
		s.Family = oneOf(p, field("addressType"), v1.IPFamily(obj.AddressType), v1.IPv4Protocol, v1.IPv6Protocol)
	}
	if s.Family != "" {
		p.endpointPorts(obj, s)
		p.endpointAddresses(obj, s)
	}
}

func (p *parser) endpointPorts(obj *discoveryv1.EndpointSlice, s *EndpointSlice) {
	for i := range obj.Ports {
		in := &obj.Ports[i]
		port := EndpointPort{Protocol: v1.ProtocolTCP}
		if in.Name != nil {
			port.Name = *in.Name
		}
		if in.Protocol != nil {
			port.Protocol = p.protocol(path{"ports", i, ".protocol"}, *in.Protocol)
		}
		p.portName(path{"ports", i, ".name"}, port.Name)
		if in.Port == nil {
			// A slice without numbers stands for all ports, which no Service port can mean.
			p.note(path{"ports", i, ".port"}, "is missing: the port is ignored")
			continue
		}
		if port.Port = p.port(path{"ports", i, ".port"}, *in.Port); port.Port != 0 && port.Protocol != "" {
			s.Ports = append(s.Ports, port)
		}
	}
}

// endpointAddresses reads the first address of each endpoint, the only one that
// has a meaning.
func (p *parser) endpointAddresses(obj *discoveryv1.EndpointSlice, s *EndpointSlice) {
	if len(obj.Endpoints) == 0 {
		p.note(field("endpoints"), "is empty")
		return
	}
	used := 0
	for i := range obj.Endpoints {
		s.Addresses = append(s.Addresses, netip.Addr{})
		texts := obj.Endpoints[i].Addresses
		if len(texts) == 0 {
			p.add(Omitted, path{"endpoints", i, ".addresses"}, "is empty; the endpoint is left out")
			continue
		}
		addr, err := p.parseAddr(texts[0])
		switch {
		case err != nil:
		case addr.Is4In6():
			err = mappedError(addr)
		case familyOf(addr) != s.Family:
			err = fmt.Errorf("%v is not an %s address as addressType says", addr, s.Family)
		}
		if err != nil {
			p.add(Omitted, path{"endpoints", i, ".addresses[0]"}, "%v; the endpoint is left out", err)
			continue
		}
		s.Addresses[i] = addr
		used++
	}
	if p.strict && used == 0 {
		// A slice with nothing left is more likely a slip than an intention.
		p.add(Invalid, field("endpoints"), "none of the %d endpoints can be used", len(obj.Endpoints))
	}
}
