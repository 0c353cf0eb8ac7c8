package status

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/explain"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// servicesPerLook is how many Services are read while the engine is held.
const servicesPerLook = 256

// names caches the sorted names of all Services until a Service is added or removed:
// sorting them is the largest part of the cost of a page.
type names struct {
	mu    sync.Mutex
	stamp uint64 // the resolver's ServicesStamp that list belongs to
	list  []types.NamespacedName
}

// serviceNames returns the names of all Services, sorted. The caller must not modify
// the slice.
func (s *Server) serviceNames() []types.NamespacedName {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	var list []types.NamespacedName
	s.settings.Engine.Look(func(v engine.View) {
		if stamp := v.Resolver.ServicesStamp(); stamp != s.names.stamp || s.names.list == nil {
			s.names.stamp, list = stamp, v.Resolver.ServiceNames()
		}
	})
	if list != nil {
		slices.SortFunc(list, compareNames)
		s.names.list = list
	}
	return s.names.list
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// orders are the keys that a list of Services can be sorted by. Services with equal
// keys are sorted by name.
var orders = map[string]func(a, b *statusapi.ServiceSummary) int{
	"name":        nil, // they are sorted by name already
	"used":        func(a, b *statusapi.ServiceSummary) int { return cmp.Compare(a.Used, b.Used) },
	"since":       func(a, b *statusapi.ServiceSummary) int { return a.Since.Compare(b.Since) },
	"state":       func(a, b *statusapi.ServiceSummary) int { return cmp.Compare(severity(a), severity(b)) },
	"connections": func(a, b *statusapi.ServiceSummary) int { return cmp.Compare(connections(a), connections(b)) },
	"bytes":       func(a, b *statusapi.ServiceSummary) int { return cmp.Compare(bytesOf(a), bytesOf(b)) },
}

// severity is higher the more urgently a Service needs attention.
func severity(s *statusapi.ServiceSummary) int {
	n := map[statusapi.State]int{statusapi.Pending: 1, statusapi.Refused: 8}[s.State]
	if s.Problems > 0 {
		n += 4
	}
	if s.Used == 0 {
		n += 2
	}
	return n
}

func connections(s *statusapi.ServiceSummary) uint64 {
	if s.Traffic == nil || s.Traffic.Connections == nil {
		return 0
	}
	return *s.Traffic.Connections
}

func bytesOf(s *statusapi.ServiceSummary) (n uint64) {
	if s.Traffic == nil {
		return 0
	}
	for _, b := range []*uint64{s.Traffic.BytesIn, s.Traffic.BytesOut} {
		if b != nil {
			n += *b
		}
	}
	return n
}

// services returns a page of Services. It reads all Services only if a filter or the
// order requires it, and their traffic only if the order does.
func (s *Server) services(ctx context.Context, r *request) (any, error) {
	key, descending := strings.CutPrefix(r.query.Get("sort"), "-")
	key = cmp.Or(key, "name")
	order, known := orders[key]
	if !known {
		return nil, refuse(http.StatusBadRequest, "sort %q: want name, used, since, state, connections or bytes", key)
	}
	f := filter{namespace: r.query.Get("namespace"), text: strings.ToLower(r.query.Get("filter")), troubled: r.query.Get("problems") == "true"}
	c := s.collector()
	if order == nil && f.byName() {
		list := f.inNamespace(s.serviceNames())
		if descending {
			list = slices.Clone(list)
			slices.Reverse(list)
		}
		some, next, err := page(r, list)
		return statusapi.ServiceList{Items: s.withTraffic(ctx, c.summaries(some, nil)), Total: len(list), Continue: next}, err
	}
	select { // One request at a time: the summaries of 30,000 Services take tens of megabytes.
	case s.listing <- struct{}{}:
		defer func() { <-s.listing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var snapshot *trafficSnapshot
	if key == "connections" || key == "bytes" {
		snapshot = s.trafficSnapshot(ctx, r, trafficQuery{})
		c.traffic = byService(snapshot.list.Items)
	}
	all := c.summaries(f.inNamespace(s.serviceNames()), f.matches)
	if order != nil {
		slices.SortStableFunc(all, func(a, b statusapi.ServiceSummary) int {
			if descending {
				return order(&b, &a)
			}
			return order(&a, &b)
		})
	} else if descending {
		slices.Reverse(all)
	}
	some, next, err := page(r, all)
	switch {
	case snapshot == nil:
		some = s.withTraffic(ctx, some)
	case next == "":
		s.lastTraffic.CompareAndSwap(snapshot, nil)
	}
	return statusapi.ServiceList{Items: some, Total: len(all), Continue: next}, err
}

// filter selects Services.
type filter struct {
	namespace string // empty: all
	text      string // lower case; part of the name or of an address, or the start of a port
	troubled  bool   // only Services that need attention
}

// byName reports whether the name alone decides.
func (f filter) byName() bool { return f.text == "" && !f.troubled }

// inNamespace returns the names of the filter's namespace. all must be sorted.
func (f filter) inNamespace(all []types.NamespacedName) []types.NamespacedName {
	if f.namespace == "" {
		return all
	}
	find := func(namespace string) int {
		at, _ := slices.BinarySearchFunc(all, namespace, func(n types.NamespacedName, to string) int { return cmp.Compare(n.Namespace, to) })
		return at
	}
	return all[find(f.namespace):find(f.namespace+"\x00")]
}

func (f filter) matches(s *statusapi.ServiceSummary) bool {
	if f.troubled && !s.Troubled() {
		return false
	}
	return f.text == "" || strings.Contains(s.Namespace+"/"+s.Name, f.text) || strings.Contains(s.Address, f.text) ||
		slices.ContainsFunc(s.External, func(a string) bool { return strings.Contains(a, f.text) }) ||
		slices.ContainsFunc(s.Ports, func(p string) bool { return strings.HasPrefix(strings.ToLower(p), f.text) })
}

// collector builds summaries of Services.
type collector struct {
	*Server
	problems map[types.NamespacedName]int
	traffic  map[types.NamespacedName]*statusapi.Traffic // nil if it is added later; see withTraffic
}

func (s *Server) collector() collector {
	c := collector{Server: s}
	s.settings.Engine.Look(func(v engine.View) { c.problems = v.Resolver.ProblemCounts() })
	return c
}

// withTraffic adds the traffic of Services to their summaries, and returns them.
func (s *Server) withTraffic(ctx context.Context, some []statusapi.ServiceSummary) []statusapi.ServiceSummary {
	names := make([]types.NamespacedName, len(some))
	for i := range some {
		names[i] = types.NamespacedName{Namespace: some[i].Namespace, Name: some[i].Name}
	}
	traffic := byService(s.settings.Traffic.Of(ctx, s.rowsOf(names)))
	for i, name := range names {
		some[i].Traffic = traffic[name]
	}
	return some
}

// rowsOf returns the keys of the rows of some Services.
func (s *Server) rowsOf(some []types.NamespacedName) (keys []proxy.PortKey) {
	for part := range slices.Chunk(some, servicesPerLook) {
		s.settings.Engine.Look(func(v engine.View) {
			for _, name := range part {
				rows, _ := v.Resolver.Rows(name)
				for _, row := range rows {
					keys = append(keys, row.Key)
				}
			}
		})
	}
	return keys
}

// byService returns the sum of the traffic of each Service's ports.
func byService(all []statusapi.PortTraffic) map[types.NamespacedName]*statusapi.Traffic {
	sums := map[types.NamespacedName]*statusapi.Traffic{}
	for i := range all {
		if all[i].Endpoint != "" {
			continue // The traffic of the port includes it.
		}
		name := types.NamespacedName{Namespace: all[i].Namespace, Name: all[i].Name}
		if sums[name] == nil {
			sums[name] = &statusapi.Traffic{}
		}
		sums[name].Add(&all[i].Traffic)
	}
	return sums
}

// summaries returns the summaries of the named Services that match; a nil matches
// selects all. Services that were removed meanwhile are left out.
func (c collector) summaries(some []types.NamespacedName, matches func(*statusapi.ServiceSummary) bool) []statusapi.ServiceSummary {
	out := []statusapi.ServiceSummary{}
	for part := range slices.Chunk(some, servicesPerLook) {
		c.settings.Engine.Look(func(v engine.View) {
			for _, name := range part {
				if s, ok := c.summary(v, name); ok && (matches == nil || matches(&s)) {
					out = append(out, s)
				}
			}
		})
	}
	return out
}

func (c collector) summary(v engine.View, name types.NamespacedName) (statusapi.ServiceSummary, bool) {
	rows, endpoints := v.Resolver.Rows(name)
	s := statusapi.ServiceSummary{
		Namespace: name.Namespace, Name: name.Name, Endpoints: endpoints,
		Ports: []string{}, State: statusapi.InForce, Problems: c.problems[name], Traffic: c.traffic[name],
	}
	elsewhere := false
	for _, row := range rows {
		c.add(&s, v.Row(row.Key), row)
		elsewhere = elsewhere || row.UsableSomewhere
	}
	if s.State == statusapi.InForce && s.Used == 0 {
		s.State = statusapi.StateNoEndpoints
		if elsewhere {
			s.State = statusapi.StateNoLocalEndpoint
		}
	}
	return s, len(rows) > 0
}

// add adds a row to the summary of its Service.
func (c collector) add(s *statusapi.ServiceSummary, status engine.RowStatus, row *proxy.ServicePort) {
	st := explain.StatusOf(status)
	if worse(st.State, s.State) {
		s.State, s.Reason = st.State, st.Reason
	}
	if status.Since.After(s.Since) {
		s.Since = status.Since
	}
	s.Used = max(s.Used, used(row))
	var port, nodePort uint16
	for _, f := range row.Frontends {
		switch f.Kind {
		case proxy.NodePort:
			nodePort = f.Addr.Port()
			continue
		case proxy.ClusterIP:
			s.Address = cmp.Or(s.Address, f.Addr.Addr().String())
		default:
			if a := f.Addr.Addr().String(); !slices.Contains(s.External, a) {
				s.External = append(s.External, a)
			}
		}
		port = f.Addr.Port()
	}
	if text := portText(port, nodePort, row.Key.Protocol); !slices.Contains(s.Ports, text) {
		s.Ports = append(s.Ports, text)
	}
}

func worse(a, b statusapi.State) bool {
	rank := func(s statusapi.State) int {
		return slices.Index(statusapi.States[:], s)
	}
	return rank(a) > rank(b)
}

// portText writes a port as kubectl does.
func portText(port, nodePort uint16, p proxy.Protocol) string {
	if nodePort != 0 {
		return fmt.Sprintf("%d:%d/%v", port, nodePort, p)
	}
	return fmt.Sprintf("%d/%v", port, p)
}

// used returns how many endpoints are in the Cluster list, the Local list or both. It
// runs while the engine is held, for every port of a Service, so it builds a set of
// the Local list only, which is usually short.
func used(row *proxy.ServicePort) int {
	n := len(row.Cluster) + len(row.Local)
	if len(row.Cluster) == 0 || len(row.Local) == 0 {
		return n
	}
	local := proxy.AddressesOf(row.Local)
	for i := range row.Cluster {
		if e := &row.Cluster[i]; e.Local && local[e.Addr] {
			n--
		}
	}
	return n
}
