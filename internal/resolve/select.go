package resolve

import (
	"net/netip"
	"slices"
	"unique"

	"sluice/internal/proxy"
)

// candidate is an endpoint as one Service port sees it.
type candidate struct {
	proxy.Endpoint
	*endpoint
}

// usable reports whether the endpoint can be used at all: it is ready, or as
// the last resort still serving while it terminates.
func (c candidate) usable() bool { return c.traits.has(ready) || c.lastResort() }

func (c candidate) lastResort() bool { return c.traits.has(serving | terminating) }

// candidates are all endpoints of one Service port, each address once, sorted.
type candidates []candidate

// gather unites the endpoints of a port over slices, which are sorted by name.
// It also says whether slices with endpoints exist, but none has the port. The
// Service's own ClusterIP is no endpoint: nobody has that address. The candidates
// of another port, if there are any, give their memory: a Service may have
// thousands of ports with thousands of endpoints each.
func gather(from []*endpointSlice, p portOfFamily, reuse candidates) (c candidates, portMissing bool) {
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
				c = c.with(s, sp.Port)
			}
		}
	}
	c = slices.DeleteFunc(c, func(e candidate) bool { return p.service.isClusterIP(e.addr) })
	return c.once(), populated && !found
}

// with adds the endpoints of a slice at a port.
func (c candidates) with(s *endpointSlice, port uint16) candidates {
	c = slices.Grow(c, len(s.endpoints))
	for i := range s.endpoints {
		e := &s.endpoints[i]
		c = append(c, candidate{proxy.Endpoint{
			Addr:        netip.AddrPortFrom(e.addr, port),
			Local:       e.traits.has(local),
			NodeUnknown: e.traits.has(nodeUnknown),
			Weight:      s.Weight,
		}, e})
	}
	return c
}

// once sorts by address and keeps one of each: the last one that is not
// terminating, because a new pod may already have the address of one that goes.
func (c candidates) once() candidates {
	slices.SortStableFunc(c, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	out := c[:0]
	for _, e := range c {
		n := len(out)
		switch {
		case n == 0 || out[n-1].Addr != e.Addr:
			out = append(out, e)
		case !e.traits.has(terminating):
			out[n-1] = e
		}
	}
	return out
}

// endpoints returns those that match, by the first way in which some do, in the
// memory of another list.
func (c candidates) endpoints(reuse []proxy.Endpoint, ways ...func(candidate) bool) []proxy.Endpoint {
	out := reuse[:0]
	for _, match := range ways {
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

// cluster returns the endpoints to use from this node: the ready ones that the
// hints leave, else all that serve while they terminate.
func (c candidates) cluster(zone string, reuse []proxy.Endpoint) []proxy.Endpoint {
	hinted := c.hints(zone)
	return c.endpoints(reuse, func(e candidate) bool { return e.traits.has(ready) && hinted(e) }, candidate.lastResort)
}

// local returns the endpoints to use on this node, which hints do not touch.
func (c candidates) local(reuse []proxy.Endpoint) []proxy.Endpoint {
	return c.endpoints(reuse, func(e candidate) bool { return e.traits.has(ready | local) },
		func(e candidate) bool { return e.traits.has(local) && e.lastResort() })
}

// readyHere adds the addresses of ready endpoints on this node to a list.
func (c candidates) readyHere(list []netip.Addr) []netip.Addr {
	for _, e := range c {
		if e.traits.has(ready | local) {
			list = append(list, e.Addr.Addr())
		}
	}
	return list
}

// draining returns the endpoints that serve but are in none of a row's lists:
// they are elsewhere, for another zone, or on their way out.
func (c candidates) draining(sp *proxy.ServicePort) []netip.AddrPort {
	listed := proxy.AddressesOf(sp.Cluster, sp.Local)
	var out []netip.AddrPort
	for _, e := range c {
		if e.traits.has(serving) && !listed[e.Addr] {
			out = append(out, e.Addr)
		}
	}
	return out
}

// hints returns which ready endpoints the hints choose. Hints count only if
// every ready endpoint has one and one of them is for us; node hints come
// before zone hints.
func (c candidates) hints(zone string) func(candidate) bool {
	byNode := func(e candidate) bool { return e.traits.has(forThisNode) }
	if c.hinted(func(e candidate) bool { return e.traits.has(nodeHinted) }, byNode) {
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

// hinted reports whether one kind of hint counts.
func (c candidates) hinted(has, forUs func(candidate) bool) bool {
	return !slices.ContainsFunc(c, func(e candidate) bool { return e.traits.has(ready) && !has(e) }) &&
		slices.ContainsFunc(c, func(e candidate) bool { return e.traits.has(ready) && forUs(e) })
}
