package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// PortDescription is everything known about one port of a Service in one family,
// including what is not part of its row.
type PortDescription struct {
	Row       *proxy.ServicePort // as published
	Port      uint16
	NodePort  uint16                // 0 if it has none
	Frontends []FrontendDescription // all that the port claims
	Endpoints []EndpointDescription // all endpoints in EndpointSlices, sorted by address

	// PortMissing reports that there are EndpointSlices with endpoints, and that none
	// of them has a port of that name and protocol. SlicePorts are their ports.
	PortMissing bool
	SlicePorts  []SlicePort
}

type FrontendDescription struct {
	proxy.Frontend
	LostTo *types.NamespacedName // the Service that has it instead; nil if this one has it
}

type SlicePort struct {
	Name     string
	Protocol proxy.Protocol
	Port     uint16
}

// EndpointDescription is one endpoint of one EndpointSlice. Its port is 0 if the slice
// does not have the Service's port.
type EndpointDescription struct {
	proxy.Endpoint
	Slice                       string // the EndpointSlice's name
	Zones                       []string
	Ready, Serving, Terminating bool

	unused [2]UnusedReason // by list
}

// Unused returns why the endpoint is not in a list of the row.
func (e *EndpointDescription) Unused(list proxy.Scope) UnusedReason { return e.unused[list] }

// UnusedReason is why an endpoint is not in a list of its row.
type UnusedReason uint8

// Used means that the endpoint is in the list; the others are the reasons why it is not.
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

// String returns the reason in words. It is empty for Used.
func (u UnusedReason) String() string {
	return [...]string{
		"",
		"its EndpointSlice has no such port",
		"it is the Service's own ClusterIP",
		"another EndpointSlice has the same address, and its conditions apply",
		"not ready",
		"terminating, and no longer serving",
		"terminating, and others are ready",
		"on another node",
		"its EndpointSlice names no node for it, so it does not count as local",
		"its hints are for other nodes",
		"its hints are for other zones",
	}[u]
}

// Ports returns the ports of a Service, by family and in the order of the Service,
// without their frontends and endpoints, of which there may be very many.
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

// DescribePort returns everything known about a port as of the last Update. Its cost is
// linear in the endpoints of the Service.
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
	all := slices.Concat(r.parseProblems[serviceObject(name)], r.rowProblems[serviceObject(name)])
	for _, s := range e.slices {
		all = append(all, s.problems...)
	}
	for _, f := range r.settings.Families {
		for p := range e.service.portsOf(f) {
			all = append(all, r.lostClaims(p)...)
		}
	}
	slices.SortFunc(all, CompareProblems)
	return slices.Compact(all) // A port that is lost in both families is one problem.
}

// Denied returns the problems of Services that are not allowed to have an address,
// sorted. Its cost is linear in the number of problems.
func (r *Resolver) Denied(addr netip.Addr) (out []Problem) {
	for p := range r.problems.now {
		if p.Denied == addr {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, CompareProblems)
	return out
}

// lostClaims returns the problems of a port whose claims other ports own.
func (r *Resolver) lostClaims(p portOfFamily) (out []Problem) {
	for cl, by := range p.claims() {
		if owner := r.claims.owners[cl]; owner != by {
			out = append(out, lostClaim(cl, owner, by))
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
	c, portMissing := candidatesOf(e.slices, p, nil)
	d.PortMissing = portMissing
	lists := selection{p.service, c, c.hints(r.node.Zone), proxy.AddressesOf(d.Row.Cluster), proxy.AddressesOf(d.Row.Local)}
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

func (d *PortDescription) addSlice(s *endpointSlice, p portOfFamily, lists selection) {
	var of candidates
	for _, sp := range s.Ports {
		d.SlicePorts = append(d.SlicePorts, SlicePort{sp.Name.Value(), sp.Protocol, sp.Port})
		if sp.Name == p.port.Name && sp.Protocol == p.port.Protocol {
			of = of.appendSlice(s, sp.Port)
		}
	}
	unused := lists.unused
	if of == nil {
		of, unused = of.appendSlice(s, 0), func(candidate) [2]UnusedReason { return [...]UnusedReason{UnusedNoPort, UnusedNoPort} }
	}
	for _, c := range of {
		e := EndpointDescription{
			Endpoint:    c.Endpoint,
			Slice:       s.name.Name,
			Ready:       c.flags.has(ready),
			Serving:     c.flags.has(serving),
			Terminating: c.flags.has(terminating),
			unused:      unused(c),
		}
		for _, z := range c.zones {
			e.Zones = append(e.Zones, z.Value())
		}
		d.Endpoints = append(d.Endpoints, e)
	}
}

// selection is which endpoints of a port are in the lists of its row.
type selection struct {
	service        *service
	candidates     candidates
	hinted         func(candidate) bool // reports whether the hints select a ready endpoint
	cluster, local map[netip.AddrPort]bool
}

// unused returns why an endpoint is not in the lists, by scope.
func (l selection) unused(c candidate) [2]UnusedReason {
	if l.service.isClusterIP(c.addr) {
		return [...]UnusedReason{UnusedClusterIP, UnusedClusterIP}
	}
	at, found := slices.BinarySearchFunc(l.candidates, c, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	if !found || l.candidates[at].endpoint != c.endpoint {
		return [...]UnusedReason{UnusedDuplicate, UnusedDuplicate}
	}
	inLocal := l.unusedLocal(c)
	switch {
	case l.cluster[c.Addr]:
		return [...]UnusedReason{Used, inLocal}
	case !c.flags.has(ready):
		return [...]UnusedReason{c.unready(), inLocal}
	case l.hinted(c):
		return [...]UnusedReason{inLocal, inLocal} // The row has no Cluster list, because no traffic takes it.
	case c.flags.has(nodeHinted):
		return [...]UnusedReason{UnusedNodeHint, inLocal}
	default:
		return [...]UnusedReason{UnusedZoneHint, inLocal}
	}
}

// unusedLocal returns why an endpoint is not in the Local list.
func (l selection) unusedLocal(c candidate) UnusedReason {
	switch {
	case l.local[c.Addr]:
		return Used
	case c.flags.has(nodeUnknown):
		return UnusedNodeUnknown
	case !c.flags.has(local):
		return UnusedOtherNode
	case !c.flags.has(ready):
		return c.unready()
	default:
		return Used // The row has no Local list, because no traffic takes it; it would have the endpoint.
	}
}

// unready returns why an endpoint that is not ready is not used.
func (c candidate) unready() UnusedReason {
	switch {
	case c.lastResort():
		return UnusedTerminating
	case c.flags.has(terminating):
		return UnusedNotServing
	default:
		return UnusedNotReady
	}
}

type Claimant struct {
	Key  proxy.PortKey
	Kind proxy.Kind
}

// Claimants returns the ports that claim an address, port and protocol, the owner
// first. The address of a NodePort is the unspecified one of its family.
func (r *Resolver) Claimants(addr netip.AddrPort, p proxy.Protocol) (out []Claimant) {
	all := r.claims.claimants(claim{addr, p})
	slices.SortFunc(all, compareClaimants)
	for _, by := range all {
		p := portOfFamily{by.service, by.port, proxy.FamilyOf(addr.Addr())}
		out = append(out, Claimant{p.key(), by.kind})
	}
	return out
}

// Location returns whether the EndpointSlices have an endpoint of this address on this
// node, and on another one. Its cost is linear in the number of all endpoints.
func (r *Resolver) Location(addr netip.Addr) (here, elsewhere bool) {
	for _, e := range r.entries {
		for _, s := range e.slices {
			if s.Family != proxy.FamilyOf(addr) {
				continue
			}
			for i := range s.endpoints {
				if c := &s.endpoints[i]; c.addr == addr {
					here = here || c.flags.has(local)
					elsewhere = elsewhere || !c.flags.has(local) && !c.flags.has(nodeUnknown)
				}
			}
		}
	}
	return here, elsewhere
}

// PodCIDRs returns the pod ranges in this node's Node object.
func (r *Resolver) PodCIDRs() []netip.Prefix { return r.nodeParsed.PodCIDRs }

// ServiceNames returns the names of the Services that have rows, in no particular order.
func (r *Resolver) ServiceNames() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(r.entries))
	for name, e := range r.entries {
		if len(e.rows) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// ServicesStamp returns a number that changes whenever the result of ServiceNames does.
func (r *Resolver) ServicesStamp() uint64 { return r.servicesStamp }

// Rows returns the rows of a Service, and how many endpoints its slices have. It counts
// the family with the most endpoints, because a dual-stack pod has one in each.
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

// Problems returns all problems as of the last Update, in no particular order.
func (r *Resolver) Problems() []Problem { return slices.Collect(maps.Keys(r.problems.now)) }

func (r *Resolver) ProblemCount() int { return len(r.problems.now) }

// ProblemCounts returns how many problems each Service has, including those of its
// EndpointSlices. Its cost is linear in the number of problems.
func (r *Resolver) ProblemCounts() map[types.NamespacedName]int {
	counts := map[types.NamespacedName]int{}
	for p := range r.problems.now {
		if name, ok := p.Service(); ok {
			counts[name]++
		}
	}
	for o, list := range r.parseProblems {
		if s := r.Endpoints.known[o.name]; o.kind == sliceKind && s != nil {
			counts[s.service] += len(list)
		}
	}
	return counts
}

// Counts returns how many Services have rows, how many of them connections of this node
// cannot reach because no endpoint can be used, and how many endpoints all EndpointSlices
// have.
func (r *Resolver) Counts() (services, unreachable, endpoints int) {
	return r.services, r.unreachable, r.endpoints
}
