package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

const rangesField = "spec.loadBalancerSourceRanges"

// resolve makes the rows of an entry again, and adds what changed to a step.
func (r *Resolver) resolve(e *entry, d *proxy.Delta) {
	old := e.rows
	e.rows = nil
	var problems []Problem
	for _, f := range r.settings.Families {
		var readyLocal []netip.Addr
		if e.service != nil {
			readyLocal = r.resolveFamily(e, f, &problems)
		}
		r.resolveHealthCheck(e, f, readyLocal, d)
	}
	r.problems.replace(r.rowProblems, serviceObject(e.name), problems)
	if is, was := min(len(e.rows), 1), min(len(old), 1); is != was {
		r.services += is - was
		r.servicesStamp++
	}
	r.unreachable += unreachable(e.rows) - unreachable(old)
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

// unreachable returns 1 if a Service has rows and connections of this node can go to an
// endpoint of none of them, otherwise 0.
func unreachable(rows []*proxy.ServicePort) int {
	reachable := func(row *proxy.ServicePort) bool { return len(row.Cluster)+len(row.Local) > 0 }
	if len(rows) == 0 || slices.ContainsFunc(rows, reachable) {
		return 0
	}
	return 1
}

// resolveFamily adds the rows of one family to the entry. A row that did not change is
// the same pointer as before. It returns the addresses of ready local endpoints if the
// Service has a health check; there may be duplicates.
func (r *Resolver) resolveFamily(e *entry, f proxy.Family, problems *[]Problem) []netip.Addr {
	s := e.service
	report := func(field, format string, args ...any) {
		*problems = append(*problems, serviceObject(s.name).problem(field, format, args...))
	}
	if e.isItsOwnEndpoint(f) {
		report("spec.clusterIP", "%v is also an endpoint of the Service; the endpoint is left out", s.Addresses[f][0].Addr)
	}
	hasLoadBalancer := false
	var readyLocal []netip.Addr
	var c candidates
	var reuse []proxy.Endpoint
	for p := range s.portsOf(f) {
		var portMissing bool
		c, portMissing = candidatesOf(e.slices, p, c)
		if portMissing {
			report(fmt.Sprintf("spec.ports[%d].name", p.port.Index), "no %v EndpointSlice has a %v port named %q",
				f, p.port.Protocol, p.port.Name.Value())
		}
		if s.HealthCheckPort != 0 {
			readyLocal = c.appendReadyLocal(readyLocal)
		}
		row := r.row(p, c, r.state.Rows[p.key()], &reuse)
		hasLoadBalancer = hasLoadBalancer || hasKind(row, proxy.LoadBalancer)
		e.rows = append(e.rows, row)
	}
	if !hasLoadBalancer || len(proxy.PrefixesOf(s.SourceRanges, f)) > 0 {
		return readyLocal
	}
	switch {
	case s.UnreadableRanges:
		report(rangesField, "no readable %v range: the %v LoadBalancer addresses are closed to everyone", f, f)
	case len(s.SourceRanges) > 0:
		report(rangesField, "no %v range: the %v LoadBalancer addresses are open to everyone", f, f)
	}
	return readyLocal
}

// isItsOwnEndpoint reports whether the Service's ClusterIP is one of its endpoints.
func (e *entry) isItsOwnEndpoint(f proxy.Family) bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool {
		return s.Family == f && slices.ContainsFunc(s.endpoints, func(ep endpoint) bool { return e.service.isClusterIP(ep.addr) })
	})
}

func hasKind(sp *proxy.ServicePort, k proxy.Kind) bool {
	return slices.ContainsFunc(sp.Frontends, func(fe proxy.Frontend) bool { return fe.Kind == k })
}

// row makes one row. It returns the old one if nothing changed, and otherwise shares
// with it the lists that did not change. It uses reuse as a buffer.
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
		sp.Cluster = assignSlots(was.Cluster, *reuse)
	}
	if s.Internal == proxy.ScopeLocal || s.External == proxy.ScopeLocal && outside {
		*reuse = c.local(*reuse)
		sp.Local = assignSlots(was.Local, *reuse)
	}
	if p.port.Protocol.EndsStaleFlows() {
		sp.Draining = c.draining(sp)
	}
	if hasKind(sp, proxy.LoadBalancer) {
		sp.AllowFrom, sp.HealthCheckPort = s.allowFrom(p.family, proxy.AddrOf(r.node.IPs, p.family)), s.HealthCheckPort
		sp.PreserveDestination = s.PreserveDestination
	}
	if old != nil && old.Equal(sp) {
		return old
	}
	if slices.Equal(was.Frontends, sp.Frontends) {
		sp.Frontends = was.Frontends
	}
	return sp
}

// frontends returns the frontends that the port claims and owns.
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

// allowFrom returns the clients that may use the LoadBalancer addresses of a family;
// nil means everyone, and empty nobody. nodeIP is invalid if it is not known.
func (s *service) allowFrom(f proxy.Family, nodeIP netip.Addr) []netip.Prefix {
	of := proxy.PrefixesOf(s.SourceRanges, f)
	switch {
	case len(of) == 0 && s.UnreadableRanges:
		// A range that cannot be parsed may be of this family, and a typo must not
		// open a Service to everyone.
		return []netip.Prefix{}
	case len(of) == 0, slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	}
	if proxy.Contains(of, nodeIP) {
		// If the node has the LoadBalancer address itself, it connects to the address
		// from the same address.
		for _, a := range s.Addresses[f] {
			if a.Kind == proxy.LoadBalancer {
				of = append(of, netip.PrefixFrom(a.Addr, f.Bits()))
			}
		}
	}
	return proxy.Outermost(of)
}

// resolveHealthCheck adds a change of an entry's health check in a family to a step. It
// sorts the addresses of ready local endpoints, which may have duplicates.
func (r *Resolver) resolveHealthCheck(e *entry, f proxy.Family, readyLocal []netip.Addr, d *proxy.Delta) {
	key := proxy.HealthCheckKey{Namespace: e.name.Namespace, Name: e.name.Name, Family: f}
	c := proxy.HealthCheckChange{Old: r.state.HealthChecks[key]}
	if s := e.service; s != nil && s.HealthCheckPort != 0 && len(s.Addresses[f]) > 0 {
		slices.SortFunc(readyLocal, netip.Addr.Compare)
		c.New = &proxy.HealthCheck{Key: key, Port: s.HealthCheckPort, Local: len(slices.Compact(readyLocal))}
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return
	}
	d.HealthChecks = append(d.HealthChecks, c)
}

// assignSlots returns the wanted endpoints, which are sorted, in slots such that as few
// as possible differ from the old list: an endpoint keeps its slot, new ones take the
// slots of those that left, and the last ones move into slots that are still empty. It
// returns old itself if nothing changed, and otherwise a new slice.
func assignSlots(old, wanted []proxy.Endpoint) []proxy.Endpoint {
	if len(wanted) == 0 {
		return nil
	}
	slots := make([]proxy.Endpoint, len(old), max(len(old), len(wanted)))
	stays := make([]bool, len(wanted))
	var empty []int // ascending
	at := -1
	for i, e := range old {
		// Most old lists are nearly sorted, so try the endpoint after the last one first.
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
		return slices.Clone(slots) // Rows live long, so do not keep unused capacity.
	default:
		return slots
	}
}
