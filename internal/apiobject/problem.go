package apiobject

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice/internal/proxy"
)

// Problem is something wrong with an object.
type Problem struct {
	Field  string // like "spec.ports[0].port"
	Reason string
	Level  Level
	Denied netip.Addr // the address that [Allowed] does not allow; invalid for other problems
	at     path
}

// Level is the severity of a problem.
type Level uint8

const (
	Note    Level = iota // for information only; the whole object is used
	Omitted              // one list item or annotation is not used; the rest is
	Invalid              // an API server would reject the object
)

// Check returns the problems of a new Service, EndpointSlice, Node or ServiceCIDR. It
// removes what is Omitted from the object. It panics for other kinds.
func Check(obj metav1.Object) []Problem {
	p := parser{strict: true}
	p.metadata(obj)
	switch obj := obj.(type) {
	case *v1.Service:
		p.service(obj)
		obj.Spec.ExternalIPs = omit(obj.Spec.ExternalIPs, "spec.externalIPs", p.problems)
		obj.Status.LoadBalancer.Ingress = omit(obj.Status.LoadBalancer.Ingress, "status.loadBalancer.ingress", p.problems)
		omitAnnotation(obj, LoadBalancing, p.problems)
	case *discoveryv1.EndpointSlice:
		p.endpointSlice(obj, func(*discoveryv1.Endpoint, netip.Addr) {})
		obj.Endpoints = omit(obj.Endpoints, "endpoints", p.problems)
		omitAnnotation(obj, Weight, p.problems)
	case *v1.Node:
		p.node(obj)
		obj.Status.Addresses = omit(obj.Status.Addresses, "status.addresses", p.problems)
	case *networkingv1.ServiceCIDR:
		p.serviceCIDR(obj)
	default:
		panic(fmt.Sprintf("apiobject: no check for a %T", obj))
	}
	return p.problems
}

// omit returns the items of a list without those that are Omitted.
func omit[E any](list []E, name string, problems []Problem) []E {
	var kept []E
	for i, e := range list {
		if !slices.ContainsFunc(problems, func(p Problem) bool {
			return p.Level == Omitted && p.at.list == name && p.at.index == i
		}) {
			kept = append(kept, e)
		}
	}
	return kept
}

// parser collects the problems of one object.
type parser struct {
	strict  bool // the object is new: no API server has validated it
	allowed Allowed

	addresses map[netip.Addr]bool // the addresses of the Service so far
	problems  []Problem
}

// path is the path of a field. It becomes text only if there is a problem.
type path struct {
	list  string // the field, or the list that has it
	index int    // in the list; -1 if the field is not in a list
	rest  string // the path from the list item to the field
}

func field(name string) path { return path{name, -1, ""} }

// String returns the path as API servers write it.
func (f path) String() string {
	if f.index < 0 {
		return f.list
	}
	return fmt.Sprintf("%s[%d]%s", f.list, f.index, f.rest)
}

func (p *parser) add(level Level, at path, format string, args ...any) {
	p.problems = append(p.problems, Problem{Field: at.String(), Reason: fmt.Sprintf(format, args...), Level: level, at: at})
}

// note adds a Note about a new object. In objects from an API server the same is normal.
func (p *parser) note(at path, format string, args ...any) {
	if p.strict {
		p.add(Note, at, format, args...)
	}
}

// metadata checks the name and the namespace.
func (p *parser) metadata(obj metav1.Object) {
	name, namespace := obj.GetName(), obj.GetNamespace()
	switch {
	case name == "":
		p.add(Invalid, field("metadata.name"), "is missing")
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		p.add(Invalid, field("metadata.name"), "%.60q is not a valid name: use lower case letters, digits, - and .", name)
	}
	if namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
		p.add(Invalid, field("metadata.namespace"), "%.60q is not a valid namespace: use lower case letters, digits and -", namespace)
	}
}

func (p *parser) port(at path, n int32) uint16 {
	if n < 1 || n > 65535 {
		p.add(Invalid, at, "%d is not a port (1 to 65535)", n)
		return 0
	}
	return uint16(n)
}

// optionalPort parses a port that may be 0, which means that it is not set.
func (p *parser) optionalPort(at path, n int32) uint16 {
	if n == 0 {
		return 0
	}
	return p.port(at, n)
}

func (p *parser) portName(at path, name string) {
	if p.strict && name != "" && len(validation.IsDNS1123Label(name)) > 0 {
		p.add(Invalid, at, "%.60q is not a valid name: use lower case letters, digits and -", name)
	}
}

var protocols = map[v1.Protocol]proxy.Protocol{
	v1.ProtocolTCP: proxy.TCP, v1.ProtocolUDP: proxy.UDP, v1.ProtocolSCTP: proxy.SCTP,
}

// protocol parses a protocol; the default is TCP. It returns 0 if it is unknown.
func (p *parser) protocol(at path, name v1.Protocol) proxy.Protocol {
	return protocols[oneOf(p, at, cmp.Or(name, v1.ProtocolTCP), v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)]
}

// oneOf returns a word if it is one of the known ones. Otherwise it adds a problem and
// returns "".
func oneOf[S ~string](p *parser, at path, word S, known ...S) S {
	if slices.Contains(known, word) {
		return word
	}
	last := len(known) - 1
	others := strings.Trim(fmt.Sprint(slices.Clone(known[:last])), "[]")
	p.add(Invalid, at, "%.60q is not %s or %s", word, strings.ReplaceAll(others, " ", ", "), known[last])
	return ""
}
