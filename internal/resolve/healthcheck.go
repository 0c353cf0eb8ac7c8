package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// readyHere adds the addresses of ready endpoints on this node to a list.
func (c candidates) readyHere(list []netip.Addr) []netip.Addr {
	for i := range c {
		if c[i].traits.has(ready | local) {
			list = append(list, c[i].Addr.Addr())
		}
	}
	return list
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
