package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// rangesField is where a Service says who may use its LoadBalancer addresses.
const rangesField = "spec.loadBalancerSourceRanges"

// resolve publishes an entry's rows again and puts what changed into a step.
func (r *Resolver) resolve(e *entry, d *proxy.Delta) {
	old := e.rows
	e.rows = nil
	var problems []Problem
	for _, f := range r.settings.Families {
		var here []netip.Addr
		if e.service != nil {
			here = r.resolveFamily(e, f, &problems)
		}
		r.publishHealthCheck(e, f, here, d)
	}
	r.problems.replace(r.resolved, serviceObject(e.name), problems)
	if is, was := min(len(e.rows), 1), min(len(old), 1); is != was {
		r.services += is - was
		r.servicesStamp++
	}
	kept := map[proxy.PortKey]bool{}
	for _, row := range e.rows {
		was := r.state.Rows[row.Key]
		if was != row {
			d.Upserts = append(d.Upserts, proxy.Upsert{Old: was, New: row})
		}
		if was != nil {
			kept[row.Key] = true
		}
	}
	for _, was := range old {
		if !kept[was.Key] {
			d.Removes = append(d.Removes, was)
		}
	}
	if e.service == nil && len(e.slices) == 0 {
		delete(r.entries, e.name)
	}
}

// resolveFamily adds the rows of one family to the entry. A row that is as
// before is the old one. It returns what a health check counts, if there is one.
func (r *Resolver) resolveFamily(e *entry, f proxy.Family, problems *[]Problem) []netip.Addr {
	s := e.service
	report := func(field, format string, args ...any) {
		*problems = append(*problems, serviceObject(s.name).problem(field, format, args...))
	}
	if e.leadsToItself(f) {
		report("spec.clusterIP", "%v is an endpoint of the Service, too; the endpoint is left out", s.Addresses[f][0].Addr)
	}
	balanced := false
	var here []netip.Addr
	var c candidates
	var reuse []proxy.Endpoint
	for p := range s.portsOf(f) {
		var portMissing bool
		c, portMissing = gather(e.slices, p, c)
		if portMissing {
			report(fmt.Sprintf("spec.ports[%d].name", p.port.Index), "no %v EndpointSlice has a %v port named %q",
				f, p.port.Protocol, p.port.Name.Value())
		}
		if s.HealthCheckPort != 0 {
			here = c.readyHere(here)
		}
		row := r.row(p, c, r.state.Rows[p.key()], &reuse)
		balanced = balanced || hasKind(row, proxy.LoadBalancer)
		e.rows = append(e.rows, row)
	}
	if !balanced || len(proxy.PrefixesOf(s.SourceRanges, f)) > 0 {
		return here
	}
	switch {
	case s.UnreadableRanges:
		report(rangesField, "no readable %v range: the %v LoadBalancer addresses are closed to everyone", f, f)
	case len(s.SourceRanges) > 0:
		report(rangesField, "no %v range: the %v LoadBalancer addresses are open to everyone", f, f)
	}
	return here
}

// leadsToItself reports whether the Service has its own ClusterIP for an endpoint.
func (e *entry) leadsToItself(f proxy.Family) bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool {
		return s.Family == f && slices.ContainsFunc(s.endpoints, func(ep endpoint) bool { return e.service.isClusterIP(ep.addr) })
	})
}

func hasKind(sp *proxy.ServicePort, k proxy.Kind) bool {
	return slices.ContainsFunc(sp.Frontends, func(fe proxy.Frontend) bool { return fe.Kind == k })
}

// row makes one row. It returns the old one if that is the same, and else
// shares with it what is the same. Lists are made in memory that is used again.
func (r *Resolver) row(p portOfFamily, c candidates, old *proxy.ServicePort, reuse *[]proxy.Endpoint) *proxy.ServicePort {
	was := old
	if was == nil {
		was = &proxy.ServicePort{}
	}
	s := p.service
	sp := &proxy.ServicePort{
		Key:             p.key(),
		Frontends:       r.frontends(p),
		Internal:        s.Internal,
		External:        s.External,
		Balancing:       s.Balancing,
		Affinity:        s.Affinity,
		UsableSomewhere: slices.ContainsFunc(c, candidate.usable),
	}
	outside := slices.ContainsFunc(sp.Frontends, func(fe proxy.Frontend) bool { return fe.Kind != proxy.ClusterIP })
	if s.Internal == proxy.ScopeCluster || outside {
		*reuse = c.cluster(r.node.Zone, *reuse)
		sp.Cluster = arrange(was.Cluster, *reuse)
	}
	if s.Internal == proxy.ScopeLocal || s.External == proxy.ScopeLocal && outside {
		*reuse = c.local(*reuse)
		sp.Local = arrange(was.Local, *reuse)
	}
	if p.port.Protocol.EndsStaleFlows() {
		sp.Draining = c.draining(sp)
	}
	if hasKind(sp, proxy.LoadBalancer) {
		sp.AllowFrom, sp.HealthCheckPort = s.allowFrom(p.family, proxy.AddrOf(r.node.IPs, p.family)), s.HealthCheckPort
		sp.PreserveDestination = s.PreserveDestination
	}
	if old != nil && sameRow(old, sp) {
		return old
	}
	if slices.Equal(was.Frontends, sp.Frontends) {
		sp.Frontends = was.Frontends
	}
	return sp
}

// frontends returns what the row is reached by: what it claims and nobody has
// a better claim to.
func (r *Resolver) frontends(p portOfFamily) []proxy.Frontend {
	n := len(p.service.Addresses[p.family])
	if p.port.NodePort != 0 {
		n++
	}
	list := make([]proxy.Frontend, 0, n)
	for cl, by := range p.claims() {
		if r.claims.owners[cl] == by {
			list = append(list, proxy.Frontend{Kind: by.kind, Addr: cl.addr})
		}
	}
	return list
}

// allowFrom returns who may use the LoadBalancer addresses of a family; nil is
// everyone, and empty nobody. The node's address may be invalid: not known.
func (s *service) allowFrom(f proxy.Family, nodeIP netip.Addr) []netip.Prefix {
	of := proxy.PrefixesOf(s.SourceRanges, f)
	switch {
	case len(of) == 0 && s.UnreadableRanges:
		// What could not be read may have been the family's: a typo must not
		// open what somebody meant to close.
		return []netip.Prefix{}
	case len(of) == 0, slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	}
	if proxy.Contains(of, nodeIP) {
		// A node that holds the address itself talks to it from that address.
		for _, a := range s.Addresses[f] {
			if a.Kind == proxy.LoadBalancer {
				of = append(of, netip.PrefixFrom(a.Addr, f.Bits()))
			}
		}
	}
	return proxy.Outermost(of)
}

// sameRow compares two rows of one key.
func sameRow(a, b *proxy.ServicePort) bool {
	return a.Internal == b.Internal && a.External == b.External && a.Balancing == b.Balancing && a.Affinity == b.Affinity &&
		a.UsableSomewhere == b.UsableSomewhere && a.HealthCheckPort == b.HealthCheckPort && a.PreserveDestination == b.PreserveDestination && slices.Equal(a.Frontends, b.Frontends) &&
		slices.Equal(a.Cluster, b.Cluster) && slices.Equal(a.Local, b.Local) &&
		(a.AllowFrom == nil) == (b.AllowFrom == nil) && slices.Equal(a.AllowFrom, b.AllowFrom) &&
		slices.Equal(a.Draining, b.Draining)
}

// publishHealthCheck puts into a step what changed about an entry's health
// check of a family. The addresses may hold duplicates.
func (r *Resolver) publishHealthCheck(e *entry, f proxy.Family, here []netip.Addr, d *proxy.Delta) {
	key := proxy.HealthCheckKey{Namespace: e.name.Namespace, Name: e.name.Name, Family: f}
	c := proxy.HealthCheckChange{Old: r.state.HealthChecks[key]}
	if s := e.service; s != nil && s.HealthCheckPort != 0 && len(s.Addresses[f]) > 0 {
		slices.SortFunc(here, netip.Addr.Compare)
		c.New = &proxy.HealthCheck{Key: key, Port: s.HealthCheckPort, Local: len(slices.Compact(here))}
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return
	}
	d.HealthChecks = append(d.HealthChecks, c)
}

// arrange returns the wanted endpoints, which are sorted, in slots that follow
// from the old ones: who had a slot keeps it, newcomers take the slots of those
// that left, and the last ones move into slots that remain empty, so that as few
// as possible change. The result is old itself if nothing changed, and else in memory
// of its own.
func arrange(old, wanted []proxy.Endpoint) []proxy.Endpoint {
	if len(wanted) == 0 {
		return nil
	}
	slots := make([]proxy.Endpoint, len(old), max(len(old), len(wanted)))
	stays := make([]bool, len(wanted))
	var empty []int // ascending
	at := -1
	for i, e := range old {
		// Most are where the one before has its neighbour.
		found := at+1 < len(wanted) && wanted[at+1].Addr == e.Addr
		if at++; !found {
			at, found = slices.BinarySearchFunc(wanted, e.Addr, func(e proxy.Endpoint, a netip.AddrPort) int {
				return e.Addr.Compare(a)
			})
		}
		if !found {
			empty = append(empty, i)
			continue
		}
		slots[i], stays[at] = wanted[at], true
	}
	for i, e := range wanted {
		switch {
		case stays[i]:
		case len(empty) > 0:
			slots[empty[0]], empty = e, empty[1:]
		default:
			slots = append(slots, e)
		}
	}
	for len(empty) > 0 {
		last := len(slots) - 1
		if e := len(empty) - 1; empty[e] == last {
			empty = empty[:e]
		} else {
			slots[empty[0]], empty = slots[last], empty[1:]
		}
		slots = slots[:last]
	}
	switch {
	case slices.Equal(slots, old):
		return old
	case len(slots) < cap(slots):
		return slices.Clone(slots) // rows live long: no room for endpoints that left
	default:
		return slots
	}
}
