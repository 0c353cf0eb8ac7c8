package resolve

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// healthCheckPort returns the port at which the node answers for a Service: 0
// unless a load balancer has to know which nodes have endpoints.
func (r *serviceReader) healthCheckPort() uint16 {
	spec := &r.obj.Spec
	if spec.Type != v1.ServiceTypeLoadBalancer || externalScope(spec) != proxy.ScopeLocal || spec.HealthCheckNodePort == 0 {
		return 0
	}
	port, err := parsePort(spec.HealthCheckNodePort)
	if err != nil {
		r.add("spec.healthCheckNodePort", "%v", err)
		return 0
	}
	return port
}

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
	if s := e.service; s != nil && s.healthCheck != 0 && len(s.addresses[f]) > 0 {
		slices.SortFunc(here, netip.Addr.Compare)
		c.New = &proxy.HealthCheck{Key: key, Port: s.healthCheck, Local: len(slices.Compact(here))}
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return
	}
	d.HealthChecks = append(d.HealthChecks, c)
}
