package resolve

import (
	"net/netip"
	"slices"
	"unique"

	"sluice/internal/proxy"
)

// candidate is an endpoint at one Service port.
type candidate struct {
	proxy.Endpoint
	*endpoint
}

// usable reports whether the endpoint may get new connections: it is ready, or it is a
// last resort.
func (c candidate) usable() bool { return c.flags.has(ready) || c.lastResort() }

// lastResort reports whether the endpoint is still serving while it terminates. Such
// an endpoint is used if no endpoint is ready.
func (c candidate) lastResort() bool { return c.flags.has(serving | terminating) }

// candidates are all endpoints of one Service port, sorted, each address once.
type candidates []candidate

// candidatesOf returns the endpoints of a port in slices, which are sorted by name. It
// also reports whether there are slices with endpoints, but none with the port. An
// endpoint with the Service's own ClusterIP is left out: no host has that address.
// The result uses the memory of reuse, the candidates of another port, which may be
// nil: a Service may have thousands of ports with thousands of endpoints each.
func candidatesOf(from []*endpointSlice, p portOfFamily, reuse candidates) (c candidates, portMissing bool) {
	c = reuse[:0]
	populated, found := false, false
	for _, s := range from {
		if s.Family != p.family {
			continue
		}
		populated = populated || len(s.endpoints) > 0
		for _, sp := range s.Ports {
			if sp.Name == p.port.Name && sp.Protocol == p.port.Protocol {
				found = true
				c = c.appendSlice(s, sp.Port)
			}
		}
	}
	c = slices.DeleteFunc(c, func(e candidate) bool { return p.service.isClusterIP(e.addr) })
	return c.unique(), populated && !found
}

// appendSlice appends the endpoints of a slice at a port.
func (c candidates) appendSlice(s *endpointSlice, port uint16) candidates {
	c = slices.Grow(c, len(s.endpoints))
	for i := range s.endpoints {
		e := &s.endpoints[i]
		c = append(c, candidate{proxy.Endpoint{
			Addr:        netip.AddrPortFrom(e.addr, port),
			Local:       e.flags.has(local),
			NodeUnknown: e.flags.has(nodeUnknown),
			Weight:      s.Weight,
		}, e})
	}
	return c
}

// unique sorts by address and removes duplicates. It keeps the last duplicate that is
// not terminating, because a new pod may have the address of one that is terminating.
func (c candidates) unique() candidates {
	slices.SortStableFunc(c, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	out := c[:0]
	for _, e := range c {
		n := len(out)
		switch {
		case n == 0 || out[n-1].Addr != e.Addr:
			out = append(out, e)
		case !e.flags.has(terminating):
			out[n-1] = e
		}
	}
	return out
}

// firstMatches returns the endpoints that match the first condition that any endpoint
// matches. The result uses the memory of reuse.
func (c candidates) firstMatches(reuse []proxy.Endpoint, conditions ...func(candidate) bool) []proxy.Endpoint {
	out := reuse[:0]
	for _, match := range conditions {
		for _, e := range c {
			if match(e) {
				out = append(out, e.Endpoint)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}

// cluster returns the Cluster list: the ready endpoints that the hints select, or
// without any those that serve while they terminate.
func (c candidates) cluster(zone string, reuse []proxy.Endpoint) []proxy.Endpoint {
	hinted := c.hints(zone)
	return c.firstMatches(reuse, func(e candidate) bool { return e.flags.has(ready) && hinted(e) }, candidate.lastResort)
}

// local returns the Local list. Hints do not apply to it.
func (c candidates) local(reuse []proxy.Endpoint) []proxy.Endpoint {
	return c.firstMatches(reuse, func(e candidate) bool { return e.flags.has(ready | local) },
		func(e candidate) bool { return e.flags.has(local) && e.lastResort() })
}

// appendReadyLocal appends the addresses of the ready endpoints on this node.
func (c candidates) appendReadyLocal(list []netip.Addr) []netip.Addr {
	for _, e := range c {
		if e.flags.has(ready | local) {
			list = append(list, e.Addr.Addr())
		}
	}
	return list
}

// draining returns the endpoints that serve but are in neither list of a row: they are
// on another node, for another zone, or terminating.
func (c candidates) draining(sp *proxy.ServicePort) []netip.AddrPort {
	listed := proxy.AddressesOf(sp.Cluster, sp.Local)
	var out []netip.AddrPort
	for _, e := range c {
		if e.flags.has(serving) && !listed[e.Addr] {
			out = append(out, e.Addr)
		}
	}
	return out
}

// hints returns a function that reports whether the hints select a ready endpoint.
// Hints of a kind apply only if every ready endpoint has one and at least one of them
// is for this node or zone. Node hints have precedence over zone hints.
func (c candidates) hints(zone string) func(candidate) bool {
	byNode := func(e candidate) bool { return e.flags.has(forThisNode) }
	if c.hinted(func(e candidate) bool { return e.flags.has(nodeHinted) }, byNode) {
		return byNode
	}
	if zone != "" {
		here := unique.Make(zone)
		byZone := func(e candidate) bool { return slices.Contains(e.zones, here) }
		if c.hinted(func(e candidate) bool { return len(e.zones) > 0 }, byZone) {
			return byZone
		}
	}
	return func(candidate) bool { return true }
}

// hinted reports whether hints of one kind apply.
func (c candidates) hinted(has, forUs func(candidate) bool) bool {
	return !slices.ContainsFunc(c, func(e candidate) bool { return e.flags.has(ready) && !has(e) }) &&
		slices.ContainsFunc(c, func(e candidate) bool { return e.flags.has(ready) && forUs(e) })
}
