package resolve

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// FuzzResolve plays any sequence of events in any grouping and expects the
// state that a new resolver builds from the objects that remain.
func FuzzResolve(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 4, 1, 0, 0, 0, 4})
	f.Add([]byte("a Service, its slices, and then some of them go"))
	f.Add([]byte{0, 1, 255, 255, 255, 0, 2, 255, 255, 255, 4, 0, 1, 128, 0, 0, 1, 7, 7, 7, 7, 2, 1, 3, 1})
	f.Fuzz(playAll)
}

// TestResolveRandom plays long random scripts, so that every ordinary run of
// the tests goes where the fuzzer goes.
func TestResolveRandom(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			data := make([]byte, 600)
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			playAll(t, data)
		})
	}
}

func playAll(t *testing.T, data []byte) {
	w := newWorld(t)
	for in := script(data); len(in) > 0; {
		w.play(&in)
	}
	w.update()
	w.compareWithFresh()
}

// script is what is left of the fuzzer's bytes.
type script []byte

// next returns the next byte, 0 at the end.
func (s *script) next() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

// pick returns one of some values.
func pick[T any](s *script, of ...T) T { return of[int(s.next())%len(of)] }

// world is a resolver under test, the objects it was told of, and somebody who
// follows its steps.
type world struct {
	t        *testing.T
	resolver *Resolver
	follower *proxy.State
	problems map[Problem]bool // as told
	services map[string]*v1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	cidrs    map[string]*networkingv1.ServiceCIDR
	node     *v1.Node
}

func newWorld(t *testing.T) *world {
	return &world{
		t:        t,
		resolver: New(fuzzSettings()),
		follower: proxy.NewState(),
		problems: map[Problem]bool{},
		services: map[string]*v1.Service{},
		slices:   map[string]*discoveryv1.EndpointSlice{},
		cidrs:    map[string]*networkingv1.ServiceCIDR{},
	}
}

func fuzzSettings() Settings {
	return Settings{
		NodeName:          testNode,
		NodeCIDRs:         true,
		NodePortAddresses: NodePortAddresses{Primary: true},
		Balancing:         Balancing{Mode: "m", Methods: []proxy.Balancing{proxy.RoundRobin, proxy.Random}, Cluster: proxy.RoundRobin},
	}
}

// play takes one event from the script.
func (w *world) play(in *script) {
	switch in.next() % 8 {
	case 0, 1:
		s := fuzzService(in)
		key := s.Namespace + "/" + s.Name
		w.resolver.Services.Update(w.services[key], s)
		w.services[key] = s
	case 2, 3:
		s := fuzzSlice(in)
		w.resolver.Endpoints.Update(s, false)
		w.slices[s.Namespace+"/"+s.Name] = s
	case 4:
		w.update()
	case 5:
		w.node = fuzzNode(in)
		w.resolver.UpdateNode(w.node)
	case 6:
		s := serviceCIDROf(pick(in, "one", "two"), pick(in, "10.96.0.0/16", "10.0.0.0/8", "fd00::/64", "nonsense"))
		w.resolver.UpdateServiceCIDR(w.cidrs[s.Name], s)
		w.cidrs[s.Name] = s
	case 7:
		w.delete(in)
	}
}

func (w *world) delete(in *script) {
	switch in.next() % 4 {
	case 0, 1:
		key := pick(in, "a/x", "a/y", "b/x")
		if s := w.services[key]; s != nil {
			w.resolver.Services.Update(s, nil)
			delete(w.services, key)
		}
	case 2:
		key := pick(in, "a/s1", "a/s2", "b/s1", "b/s2")
		if s := w.slices[key]; s != nil {
			w.resolver.Endpoints.Update(s, true)
			delete(w.slices, key)
		}
	case 3:
		key := pick(in, "one", "two")
		if s := w.cidrs[key]; s != nil {
			w.resolver.UpdateServiceCIDR(s, nil)
			delete(w.cidrs, key)
		}
	}
}

func fuzzService(in *script) *v1.Service {
	s := serviceOf(pick(in, "a/x", "a/y", "b/x"), pick(in, "10.96.0.1", "10.96.0.2", "10.96.0.3", "fd00::1", "", "None", "bad"))
	s.CreationTimestamp = metav1.Unix(int64(in.next()%2), 0)
	flags := in.next()
	if flags&1 != 0 {
		dualStack("10.96.0.2", "fd00::2")(s)
	}
	if flags&2 != 0 {
		externalIPs(pick(in, "203.0.113.1", "203.0.113.2", "2001:db8::1", "300.1.1.1"), "10.96.0.1")(s)
	}
	if flags&4 != 0 {
		loadBalancer("203.0.113.1", pick(in, "203.0.113.3", "2001:db8::1"))(s)
		ranges(pick(in, "0.0.0.0/0", "192.168.0.0/24", "2001:db8::/32", "bad"))(s)
		s.Spec.HealthCheckNodePort = pick[int32](in, 0, 30100, 30101, 70000)
	}
	if flags&8 != 0 {
		nodePort(pick[int32](in, 30080, 30081, 70000))(s)
	}
	if flags&16 != 0 {
		externalLocal(s)
	}
	if flags&32 != 0 {
		internalLocal(s)
	}
	if flags&64 != 0 {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	if flags&128 != 0 {
		extra := v1.ServicePort{
			Name: pick(in, "dns", "http"), Protocol: pick(in, v1.ProtocolUDP, v1.ProtocolTCP, ""), Port: pick[int32](in, 80, 53, 0),
			NodePort: pick[int32](in, 0, 30080),
		}
		s.Spec.Ports = append(s.Spec.Ports, extra)
	}
	if way := pick(in, "", "", "", "random", "maglev", "nonsense"); way != "" {
		s.Annotations = map[string]string{apiobject.LoadBalancing: way}
	}
	if in.next()%16 == 1 {
		s.Labels = map[string]string{otherProxyLabel: "other"}
	}
	return s
}

func fuzzSlice(in *script) *discoveryv1.EndpointSlice {
	family := pick(in, "10.1.0.%d", "10.1.0.%d", "fd00:1::%d")
	var endpoints []discoveryv1.Endpoint
	for n := in.next() % 8; n > 0; n-- {
		e := endpointOf(fmt.Sprintf(family, in.next()%8))
		pick(in, here, nowhere, func(*discoveryv1.Endpoint) {})(&e)
		conditions(pick(in, "rs-", "rs-", "-st", "--t", "-s-"))(&e)
		pick(in, zones("z1"), zones("z2"), zones("z1", "z2"), nodes(testNode), func(*discoveryv1.Endpoint) {})(&e)
		endpoints = append(endpoints, e)
	}
	s := sliceOf(pick(in, "a/s1", "a/s2", "b/s1", "b/s2"), pick(in, "x", "y", "x", ""), endpoints...)
	if weight := pick(in, "", "", "1", "5", "70000"); weight != "" {
		s.Annotations = map[string]string{apiobject.Weight: weight}
	}
	if in.next()%4 == 1 {
		s.Ports = append(s.Ports, slicePortOf(pick(in, "dns", "http", "other"), pick[int32](in, 53, 8081, 0)))
		s.Ports[1].Protocol = pick(in, new(v1.ProtocolUDP), nil)
	}
	return s
}

func fuzzNode(in *script) *v1.Node {
	n := nodeOf(pick(in, "", "z1", "z2"), pick(in, "192.168.0.1", "192.168.1.1", "2001:db8::9"))
	n.Spec.PodCIDRs = pick(in, nil, []string{"10.1.0.0/24"}, []string{"10.1.0.0/24", "fd00:1::/64"}, []string{"bad"})
	return n
}

// update takes a step and checks everything a step promises.
func (w *world) update() {
	w.t.Helper()
	d := w.resolver.Update()
	for _, row := range d.Removes {
		if w.follower.Rows[row.Key] != row {
			w.t.Fatalf("removed row was not published: %v", row)
		}
	}
	for _, u := range d.Upserts {
		if w.follower.Rows[u.New.Key] != u.Old {
			w.t.Fatalf("old row was not published: %v", u.Old)
		}
		if u.Old == nil {
			continue
		}
		if u.Old.Equal(u.New) {
			w.t.Fatalf("row did not change: %v", u.New)
		}
		checkSlots(w.t, u.Old.Cluster, u.New.Cluster)
		checkSlots(w.t, u.Old.Local, u.New.Local)
	}
	for _, c := range d.HealthChecks {
		if w.follower.HealthChecks[c.Key()] != c.Old {
			w.t.Fatalf("old health check was not published: %v", c.Old)
		}
		if c.Old != nil && c.New != nil && *c.Old == *c.New {
			w.t.Fatalf("health check did not change: %v", c.New)
		}
	}
	w.follower.Apply(d)
	checkClaims(w.t, w.follower)
	w.takeProblems()
	if again := w.resolver.Update(); !again.Empty() {
		w.t.Fatalf("a second Update changes something: %+v", again)
	}
}

// takeProblems follows what is told of problems.
func (w *world) takeProblems() {
	w.t.Helper()
	found, resolved := w.resolver.TakeProblems()
	for _, p := range found {
		if w.problems[p] {
			w.t.Fatalf("problem found twice: %v", p)
		}
		w.problems[p] = true
	}
	for _, p := range resolved {
		if !w.problems[p] {
			w.t.Fatalf("problem resolved that was not there: %v", p)
		}
		delete(w.problems, p)
	}
}

// checkClaims fails if two rows have one frontend.
func checkClaims(t *testing.T, s *proxy.State) {
	t.Helper()
	type frontend struct {
		claim
		nodePort bool
	}
	seen := map[frontend]proxy.PortKey{}
	for k, row := range s.Rows {
		for _, fe := range row.Frontends {
			c := frontend{claim{fe.Addr, k.Protocol}, fe.Kind == proxy.NodePort}
			if other, taken := seen[c]; taken {
				t.Fatalf("%v and %v both have %v", k, other, fe)
			}
			seen[c] = k
		}
	}
}

// checkSlots fails unless endpoints that stay keep their slots as promised.
func checkSlots(t *testing.T, old, cur []proxy.Endpoint) {
	t.Helper()
	find := func(list []proxy.Endpoint, e proxy.Endpoint) int {
		return slices.IndexFunc(list, func(o proxy.Endpoint) bool { return o.Addr == e.Addr })
	}
	for i, e := range old {
		if at := find(cur, e); at >= 0 && at != i && i < len(cur) {
			t.Fatalf("%v lost its slot: %v -> %v", e.Addr, old, cur)
		}
	}
	for i, e := range cur {
		if find(cur, e) != i {
			t.Fatalf("%v has two slots: %v", e.Addr, cur)
		}
	}
}

// compareWithFresh builds the state from what remains, in one step.
func (w *world) compareWithFresh() {
	w.t.Helper()
	fresh := New(fuzzSettings())
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(w.slices))) {
		add(w.t, fresh, w.slices[key])
	}
	for _, key := range slices.Sorted(maps.Keys(w.services)) {
		add(w.t, fresh, w.services[key])
	}
	for _, s := range w.cidrs {
		add(w.t, fresh, s)
	}
	if w.node != nil {
		add(w.t, fresh, w.node)
	}
	fresh.Update()
	want := describe(fresh.State())
	if diff := cmp.Diff(want, describe(w.resolver.State())); diff != "" {
		w.t.Fatalf("state mismatch (-from scratch +by steps):\n%s", diff)
	}
	if diff := cmp.Diff(want, describe(w.follower)); diff != "" {
		w.t.Fatalf("follower mismatch (-from scratch +by steps):\n%s", diff)
	}
	if diff := cmp.Diff(problemsOf(fresh), slices.SortedFunc(maps.Keys(w.problems), CompareProblems), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		w.t.Fatalf("problems mismatch (-from scratch +by steps):\n%s", diff)
	}
	if len(w.resolver.entries) != len(fresh.entries) || len(w.resolver.claims.owners) != len(fresh.claims.owners) ||
		len(w.resolver.claims.contested) != len(fresh.claims.contested) {
		w.t.Fatalf("something is kept of objects that are gone")
	}
	without := 0
	for _, e := range w.resolver.entries {
		checkDescription(w.t, w.resolver, e)
		usable := func(row *proxy.ServicePort) bool { return len(row.Cluster) > 0 || len(row.Local) > 0 }
		if len(e.rows) > 0 && !slices.ContainsFunc(e.rows, usable) {
			without++
		}
	}
	if _, unreachable, _ := w.resolver.Counts(); unreachable != without {
		w.t.Fatalf("%d Services are counted as unreachable, %d are", unreachable, without)
	}
}

// checkDescription fails unless what is told of a Service is what its rows have.
func checkDescription(t *testing.T, r *Resolver, e *entry) {
	t.Helper()
	ports, known := r.Ports(e.name)
	if known != (e.service != nil) || len(ports) != len(e.rows) {
		t.Fatalf("known %t, %d ports of %d rows", known, len(ports), len(e.rows))
	}
	for i := range ports {
		p, found := r.DescribePort(ports[i].Row.Key)
		if !found || p.Row != e.rows[i] || p.Row != ports[i].Row {
			t.Fatalf("row %v is described as %v", e.rows[i], p.Row)
		}
		for scope, list := range [...][]proxy.Endpoint{p.Row.Cluster, p.Row.Local} {
			var used []proxy.Endpoint
			for _, x := range p.Endpoints {
				if x.Unused(proxy.Scope(scope)) == Used {
					used = append(used, x.Endpoint)
				}
			}
			if len(list) > 0 && !slices.Equal(used, sorted(list)) {
				t.Fatalf("list %v of %v is described as %v", proxy.Scope(scope), p.Row, used)
			}
		}
		var got []proxy.Frontend
		for _, f := range p.Frontends {
			who := r.Claimants(f.Addr, p.Row.Key.Protocol)
			if owns := who[0] == (Claimant{p.Row.Key, f.Kind}); owns != (f.LostTo == nil) {
				t.Fatalf("%v of %v: lost to %v, claimed by %v", f.Frontend, p.Row, f.LostTo, who)
			}
			if f.LostTo == nil {
				got = append(got, f.Frontend)
			}
		}
		if !slices.Equal(got, p.Row.Frontends) {
			t.Fatalf("frontends of %v are described as %v", p.Row, got)
		}
	}
}

// describe returns all of a state as text, without the order of slots.
func describe(s *proxy.State) string {
	var b strings.Builder
	for _, k := range s.Keys() {
		row := s.Rows[k]
		fmt.Fprintln(&b, row, sorted(row.Cluster), sorted(row.Local))
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.HealthChecks), proxy.CompareHealthCheckKeys) {
		fmt.Fprintln(&b, s.HealthChecks[k])
	}
	fmt.Fprintf(&b, "%+v\n%v\n", *s.Node, s.CIDRs)
	return b.String()
}

func sorted(list []proxy.Endpoint) []proxy.Endpoint {
	return slices.SortedFunc(slices.Values(list), func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
}
