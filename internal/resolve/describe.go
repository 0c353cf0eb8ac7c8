package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// PortDescription is what is known of one port of a Service in one family, that
// included which does not come to a row. It is made when it is asked for.
type PortDescription struct {
	Row       *proxy.ServicePort // as published
	Port      uint16
	NodePort  uint16                // 0: none
	Frontends []FrontendDescription // all that it claims
	Endpoints []EndpointDescription // all that there are, by address

	// PortMissing: there are EndpointSlices with endpoints, and none of them has
	// a port of that name and protocol. SlicePorts are those that they have.
	PortMissing bool
	SlicePorts  []SlicePort
}

type FrontendDescription struct {
	proxy.Frontend
	LostTo *types.NamespacedName // the Service that has it instead; nil: nobody
}

type SlicePort struct {
	Name     string
	Protocol proxy.Protocol
	Port     uint16
}

// EndpointDescription is one endpoint of one EndpointSlice. Its port is 0 if the
// slice does not have the Service's.
type EndpointDescription struct {
	proxy.Endpoint
	Slice                       string // the EndpointSlice's name
	Zones                       []string
	Ready, Serving, Terminating bool

	unused [2]UnusedReason // by list
}

// Unused says why a list of the row does not have the endpoint.
func (e *EndpointDescription) Unused(list proxy.Scope) UnusedReason { return e.unused[list] }

// UnusedReason is why an endpoint is not in a list of its row.
type UnusedReason uint8

// The reasons. Used is none: the endpoint is in the list.
const (
	Used UnusedReason = iota
	UnusedNoPort
	UnusedClusterIP
	UnusedDuplicate
	UnusedNotReady
	UnusedNotServing
	UnusedTerminating
	UnusedOtherNode
	UnusedNodeUnknown
	UnusedNodeHint
	UnusedZoneHint
)

// String returns the reason in words, that of Used is empty.
func (u UnusedReason) String() string {
	return [...]string{
		"",
		"its EndpointSlice has no such port",
		"it is the Service's own ClusterIP",
		"another EndpointSlice has the same address, whose conditions count",
		"not ready",
		"terminating, and no longer serving",
		"terminating, and others are ready",
		"on another node",
		"no node is named for it, so it is not known to be on this one",
		"hints give it to other nodes",
		"hints give it to other zones",
	}[u]
}

// Ports returns the ports of a Service, by family and then as the Service has
// them, without what is known of their frontends and endpoints: there may be very
// many of each.
func (r *Resolver) Ports(name types.NamespacedName) (ports []PortDescription, known bool) {
	e := r.entries[name]
	if e == nil || e.service == nil {
		return nil, false
	}
	for _, f := range r.settings.Families {
		for p := range e.service.portsOf(f) {
			ports = append(ports, r.port(p))
		}
	}
	return ports, true
}

// DescribePort tells what is known of a port as of the last Update. Its cost is
// that of the Service's endpoints.
func (r *Resolver) DescribePort(k proxy.PortKey) (PortDescription, bool) {
	e := r.entries[types.NamespacedName{Namespace: k.Namespace, Name: k.Name}]
	if e == nil || e.service == nil {
		return PortDescription{}, false
	}
	for p := range e.service.portsOf(k.Family) {
		if p.key() == k {
			return r.describePort(e, p), true
		}
	}
	return PortDescription{}, false
}

// ProblemsOf returns the problems of a Service and of its EndpointSlices, sorted.
func (r *Resolver) ProblemsOf(name types.NamespacedName) []Problem {
	e := r.entries[name]
	if e == nil || e.service == nil {
		return nil
	}
	all := slices.Concat(r.read[serviceObject(name)], r.resolved[serviceObject(name)])
	for _, s := range e.slices {
		all = append(all, s.problems...)
	}
	for _, f := range r.settings.Families {
		for p := range e.service.portsOf(f) {
			all = append(all, r.lostBy(p)...)
		}
	}
	slices.SortFunc(all, CompareProblems)
	return slices.Compact(all) // One port that is lost in both families is one problem.
}

// Denied returns the problems of Services that may not have an address, sorted. Its
// cost follows the problems that there are.
func (r *Resolver) Denied(addr netip.Addr) (out []Problem) {
	for p := range r.problems.now {
		if p.Denied == addr {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, CompareProblems)
	return out
}

// lostBy returns the problems of a port that has lost claims.
func (r *Resolver) lostBy(p portOfFamily) (out []Problem) {
	for cl, by := range p.claims() {
		if owner := r.claims.owners[cl]; owner != by {
			out = append(out, lost(cl, owner, by))
		}
	}
	return out
}

func (r *Resolver) port(p portOfFamily) PortDescription {
	return PortDescription{Row: r.state.Rows[p.key()], Port: p.port.Port, NodePort: p.port.NodePort}
}

func (r *Resolver) describePort(e *entry, p portOfFamily) PortDescription {
	d := r.port(p)
	for cl, by := range p.claims() {
		f := FrontendDescription{Frontend: proxy.Frontend{Kind: by.kind, Addr: cl.addr}}
		if owner := r.claims.owners[cl]; owner != by {
			f.LostTo = &owner.service.name
		}
		d.Frontends = append(d.Frontends, f)
	}
	c, portMissing := gather(e.slices, p, nil)
	d.PortMissing = portMissing
	lists := listed{p.service, c, c.hints(r.node.Zone), proxy.AddressesOf(d.Row.Cluster), proxy.AddressesOf(d.Row.Local)}
	for _, s := range e.slices {
		if s.Family == p.family {
			d.addSlice(s, p, lists)
		}
	}
	slices.SortStableFunc(d.Endpoints, func(a, b EndpointDescription) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(d.SlicePorts, func(a, b SlicePort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	d.SlicePorts = slices.Compact(d.SlicePorts)
	return d
}

func (d *PortDescription) addSlice(s *endpointSlice, p portOfFamily, lists listed) {
	var of candidates
	for _, sp := range s.Ports {
		d.SlicePorts = append(d.SlicePorts, SlicePort{sp.Name.Value(), sp.Protocol, sp.Port})
		if sp.Name == p.port.Name && sp.Protocol == p.port.Protocol {
			of = of.with(s, sp.Port)
		}
	}
	why := lists.why
	if of == nil {
		of, why = of.with(s, 0), func(candidate) [2]UnusedReason { return [...]UnusedReason{UnusedNoPort, UnusedNoPort} }
	}
	for _, c := range of {
		e := EndpointDescription{
			Endpoint:    c.Endpoint,
			Slice:       s.name.Name,
			Ready:       c.traits.has(ready),
			Serving:     c.traits.has(serving),
			Terminating: c.traits.has(terminating),
			unused:      why(c),
		}
		for _, z := range c.zones {
			e.Zones = append(e.Zones, z.Value())
		}
		d.Endpoints = append(d.Endpoints, e)
	}
}

// listed is what became of the endpoints of a port.
type listed struct {
	service        *service
	known          candidates           // each address once, sorted
	hinted         func(candidate) bool // whom the hints choose
	cluster, local map[netip.AddrPort]bool
}

// why says why the lists, by scope, do not have an endpoint.
func (l listed) why(c candidate) [2]UnusedReason {
	if l.service.isClusterIP(c.addr) {
		return [...]UnusedReason{UnusedClusterIP, UnusedClusterIP}
	}
	at, found := slices.BinarySearchFunc(l.known, c, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	if !found || l.known[at].endpoint != c.endpoint {
		return [...]UnusedReason{UnusedDuplicate, UnusedDuplicate}
	}
	here := l.notLocal(c)
	switch {
	case l.cluster[c.Addr]:
		return [...]UnusedReason{Used, here}
	case !c.traits.has(ready):
		return [...]UnusedReason{c.unready(), here}
	case l.hinted(c):
		return [...]UnusedReason{here, here} // Policy asks for this node's endpoints only, so there is no other list.
	case c.traits.has(nodeHinted):
		return [...]UnusedReason{UnusedNodeHint, here}
	default:
		return [...]UnusedReason{UnusedZoneHint, here}
	}
}

// notLocal says why the Local list does not have an endpoint.
func (l listed) notLocal(c candidate) UnusedReason {
	switch {
	case l.local[c.Addr]:
		return Used
	case c.traits.has(nodeUnknown):
		return UnusedNodeUnknown
	case !c.traits.has(local):
		return UnusedOtherNode
	case !c.traits.has(ready):
		return c.unready()
	default:
		return Used // Policy asks for no such list; it would have it.
	}
}

// unready says why an endpoint is not used that is not ready.
func (c candidate) unready() UnusedReason {
	switch {
	case c.lastResort():
		return UnusedTerminating
	case c.traits.has(terminating):
		return UnusedNotServing
	default:
		return UnusedNotReady
	}
}

type Claimant struct {
	Key  proxy.PortKey
	Kind proxy.Kind
}

// Claimants returns who claims an address, port and protocol, the one that has
// it first. A NodePort's address is the unspecified one of its family.
func (r *Resolver) Claimants(addr netip.AddrPort, p proxy.Protocol) (out []Claimant) {
	all := r.claims.rivals(claim{addr, p})
	slices.SortFunc(all, compareClaimants)
	for _, by := range all {
		p := portOfFamily{by.service, by.port, proxy.FamilyOf(addr.Addr())}
		out = append(out, Claimant{p.key(), by.kind})
	}
	return out
}

// ServiceNames returns the names of the Services that have rows, in no order.
func (r *Resolver) ServiceNames() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(r.entries))
	for name, e := range r.entries {
		if len(e.rows) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// ServicesStamp is another number whenever ServiceNames returns other names.
func (r *Resolver) ServicesStamp() uint64 { return r.servicesStamp }

// Rows returns the rows of a Service, as published, and how many endpoints its
// slices have: in the family that has the most, as a pod has an address of each.
func (r *Resolver) Rows(name types.NamespacedName) (rows []*proxy.ServicePort, endpoints int) {
	e := r.entries[name]
	if e == nil {
		return nil, 0
	}
	var n [len(proxy.Families)]int
	for _, s := range e.slices {
		n[s.Family] += len(s.endpoints)
	}
	return e.rows, slices.Max(n[:])
}

// Problems returns all that is wrong as of the last Update, in no order.
func (r *Resolver) Problems() []Problem { return slices.Collect(maps.Keys(r.problems.now)) }

func (r *Resolver) ProblemCount() int { return len(r.problems.now) }

// ProblemCounts returns how many problems each Service has, those of its
// EndpointSlices included. Its cost follows the problems that there are.
func (r *Resolver) ProblemCounts() map[types.NamespacedName]int {
	counts := map[types.NamespacedName]int{}
	for p := range r.problems.now {
		if name, ok := p.Service(); ok {
			counts[name]++
		}
	}
	for o, list := range r.read {
		if s := r.Endpoints.known[o.name]; o.kind == sliceKind && s != nil {
			counts[s.service] += len(list)
		}
	}
	return counts
}

// Counts returns how many Services have rows, and how many endpoints all
// EndpointSlices have.
func (r *Resolver) Counts() (services, endpoints int) { return r.services, r.endpoints }
