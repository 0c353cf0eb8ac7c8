package status

import (
	"context"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/explain"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// maxEndpoints bounds the endpoints of all ports together in one response.
const maxEndpoints = 5000

// service returns one Service. Each of its ports has a page of endpoints, those in
// use first.
func (s *Server) service(ctx context.Context, r *request) (any, error) {
	name := types.NamespacedName{Namespace: r.http.PathValue("namespace"), Name: r.http.PathValue("name")}
	c := s.collector()
	var out statusapi.Service
	var problems []resolve.Problem
	s.settings.Engine.Look(func(v engine.View) {
		out.ServiceSummary, _ = c.summary(v, name)
		problems = v.Resolver.ProblemsOf(name)
	})
	keys := s.rowsOf([]types.NamespacedName{name})
	if len(keys) == 0 {
		return nil, refuse(http.StatusNotFound, "no Service %s is served here: it does not exist, is headless, is a DNS alias, or is another proxy's", name)
	}
	traffic := s.settings.Traffic.Of(ctx, keys)
	out.Traffic = byService(traffic)[name]
	out.Found = problemsOf(problems[:min(len(problems), statusapi.MaxPage)])
	counted := byEndpoint(traffic)
	out.Rows = []statusapi.Port{}
	for _, key := range keys {
		var p resolve.PortDescription
		var status statusapi.Status
		found := false
		s.settings.Engine.Look(func(v engine.View) {
			p, found = v.Resolver.DescribePort(key)
			status = explain.StatusOf(v.Row(key))
		})
		if !found {
			continue // It was removed meanwhile.
		}
		port, err := portOf(r, &p, max(1, maxEndpoints/len(keys)), counted)
		if err != nil {
			return nil, err
		}
		port.Status = status
		out.Rows = append(out.Rows, port)
	}
	return out, nil
}

// endpointKey identifies an endpoint of a port, or the port if endpoint is empty.
type endpointKey struct{ port, protocol, endpoint string }

// byEndpoint returns the traffic of a Service by port and endpoint.
func byEndpoint(all []statusapi.PortTraffic) map[endpointKey]*statusapi.Traffic {
	out := map[endpointKey]*statusapi.Traffic{}
	for _, t := range all {
		out[endpointKey{t.Port, t.Protocol, t.Endpoint}] = &t.Traffic
	}
	return out
}

// portOf returns the API's form of a port, with the page of endpoints that the request
// wants, at most limit.
func portOf(r *request, p *resolve.PortDescription, limit int, counted map[endpointKey]*statusapi.Traffic) (statusapi.Port, error) {
	row := p.Row
	port := statusapi.Port{
		Name: row.Key.Port, Protocol: row.Key.Protocol.String(), Family: row.Key.Family.String(),
		Internal: row.Internal.String(), External: row.External.String(),
		Affinity: row.Affinity.Seconds(), Total: len(p.Endpoints), Frontends: []statusapi.Frontend{},
	}
	if row.Balancing != proxy.BalanceDefault {
		port.Balancing = row.Balancing.String()
	}
	if row.AllowFrom != nil {
		from := []string{}
		for _, prefix := range row.AllowFrom {
			from = append(from, prefix.String())
		}
		port.AllowFrom = &from
	}
	for _, f := range p.Frontends {
		fe := statusapi.Frontend{Kind: f.Kind.String(), Address: f.Addr.String()}
		if f.LostTo != nil {
			fe.LostTo = f.LostTo.String()
		}
		port.Frontends = append(port.Frontends, fe)
	}
	all := p.Endpoints
	slices.SortStableFunc(all, func(a, b resolve.EndpointDescription) int { return rank(&a) - rank(&b) })
	some, next, err := pageOf(r, all, limit)
	for i := range some {
		e := endpointOf(&some[i])
		e.Traffic = counted[endpointKey{port.Name, port.Protocol, e.Address}]
		port.Endpoints = append(port.Endpoints, e)
	}
	port.Continue = next
	return port, err
}

// rank sorts endpoints in use before the others.
func rank(e *resolve.EndpointDescription) int {
	if cluster, local := inUse(e); cluster || local {
		return 0
	}
	return 1
}

// inUse reports whether an endpoint is in the Cluster list and in the Local list.
func inUse(e *resolve.EndpointDescription) (cluster, local bool) {
	return e.Unused(proxy.ScopeCluster) == resolve.Used, e.Local && e.Unused(proxy.ScopeLocal) == resolve.Used
}

func endpointOf(e *resolve.EndpointDescription) statusapi.Endpoint {
	out := statusapi.Endpoint{
		Address: e.Addr.String(), Local: e.Local, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
		Weight: int(e.Weight), Zones: e.Zones, Slice: e.Slice,
	}
	if out.Used, out.UsedLocal = inUse(e); !out.Used && !out.UsedLocal {
		out.Reason = e.Unused(proxy.ScopeCluster).String()
	}
	return out
}
