package resolve

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

func way(text string) func(*v1.Service) {
	return func(s *v1.Service) { s.Annotations = map[string]string{apiobject.LoadBalancing: text} }
}

func weighted(s *discoveryv1.EndpointSlice, text string) *discoveryv1.EndpointSlice {
	s.Annotations = map[string]string{apiobject.Weight: text}
	return s
}

// TestBalancing checks that the method of a Service has precedence over the configured
// one, and that a method which the mode does not support is a problem and is not used.
func TestBalancing(t *testing.T) {
	const (
		row     = "ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 internal=Cluster external=Cluster anywhere=false cluster=[] local=[]"
		problem = "Service ns/web: metadata.annotations.sluice.dev/load-balancing: "
		ignored = "; the annotation is ignored"
		cannot  = problem + "mode m does not support maglev, only random or round-robin" + ignored
		unknown = problem + `"rr" is not random, round-robin, least-connections, source-hash or maglev` + ignored
	)
	two := []proxy.Balancing{proxy.Random, proxy.RoundRobin}
	for _, tt := range []struct {
		name      string
		settings  Balancing
		edit      []func(*v1.Service)
		want      string
		complains []string
	}{
		{"nothing said", Balancing{}, nil, row, nil},
		{"any mode", Balancing{}, []func(*v1.Service){way("maglev")}, row + " balancing=maglev", nil},
		{"cluster", Balancing{Methods: two, Cluster: proxy.Random}, nil, row + " balancing=random", nil},
		{"both", Balancing{Methods: two, Cluster: proxy.Random}, []func(*v1.Service){way("round-robin")}, row + " balancing=round-robin", nil},
		{"not this mode", Balancing{Mode: "m", Methods: two}, []func(*v1.Service){way("maglev")}, row, []string{cannot}},
		{
			"not this mode, the cluster's",
			Balancing{Mode: "m", Methods: two, Cluster: proxy.RoundRobin},
			[]func(*v1.Service){way("maglev")},
			row + " balancing=round-robin",
			[]string{cannot},
		},
		{
			"no such way",
			Balancing{Mode: "m", Methods: two, Cluster: proxy.RoundRobin},
			[]func(*v1.Service){way("rr")},
			row + " balancing=round-robin",
			[]string{unknown},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := New(Settings{NodeName: testNode, Balancing: tt.settings})
			add(t, r, serviceOf("ns/web", "10.96.0.1", tt.edit...))
			r.Update()
			wantState(t, r, []string{tt.want}, tt.complains)
		})
	}
}

// TestBalancingChanges checks that the row changes if and only if the method does.
func TestBalancingChanges(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"))
	for _, step := range []struct {
		edit []func(*v1.Service)
		rows int
	}{{nil, 0}, {[]func(*v1.Service){way("random")}, 1}, {[]func(*v1.Service){way("random")}, 0}, {nil, 1}, {[]func(*v1.Service){way("x")}, 0}} {
		add(t, r, serviceOf("ns/web", "10.96.0.1", step.edit...))
		if d := r.Update(); len(d.Upserts) != step.rows {
			t.Errorf("%d rows changed; want %d", len(d.Upserts), step.rows)
		}
	}
}

// TestWeights checks that the endpoints of a slice have its weight, and keep their slots
// when it changes. A canary is a slice of its own.
func TestWeights(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"),
		sliceOf("ns/main", "web", endpointOf("10.1.0.1"), endpointOf("10.1.0.2")),
		weighted(sliceOf("ns/canary", "web", endpointOf("10.1.0.3", here)), "7"))
	const row = "ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 internal=Cluster external=Cluster anywhere=true "
	wantState(t, r, []string{row + "cluster=[10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080*7] local=[]"}, nil)
	for _, step := range []struct {
		weight string
		rows   int
		want   string
	}{
		{"7", 0, "*7"},
		{"8", 1, "*8"},
		{"1", 1, ""},
		{"x", 0, ""},
		{"65535", 1, "*65535"},
	} {
		before := rowNamed(t, r.State(), "ns/web:http/TCP/IPv4").Cluster
		add(t, r, weighted(sliceOf("ns/canary", "web", endpointOf("10.1.0.3", here)), step.weight))
		if d := r.Update(); len(d.Upserts) != step.rows {
			t.Errorf("weight %s: %d rows changed; want %d", step.weight, len(d.Upserts), step.rows)
		}
		var problems []string
		if step.weight == "x" {
			problems = []string{`EndpointSlice ns/canary: metadata.annotations.sluice.dev/weight: "x" is not a weight (1 to 65535); ` +
				"each endpoint counts as 1"}
		}
		wantState(t, r, []string{row + "cluster=[10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080" + step.want + "] local=[]"}, problems)
		checkSlots(t, before, rowNamed(t, r.State(), "ns/web:http/TCP/IPv4").Cluster)
	}
}

// TestNoWeights checks that rows for a mode without weights have none, and that each slice
// with a weight has a problem.
func TestNoWeights(t *testing.T) {
	r := New(Settings{NodeName: testNode, Balancing: Balancing{Mode: "m", Unweighted: true}})
	add(t, r, serviceOf("ns/web", "10.96.0.1"), weighted(sliceOf("ns/canary", "web", endpointOf("10.1.0.3")), "7"))
	r.Update()
	wantState(t, r,
		[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 internal=Cluster external=Cluster anywhere=true cluster=[10.1.0.3:8080] local=[]"},
		[]string{"EndpointSlice ns/canary: metadata.annotations.sluice.dev/weight: mode m does not support weights; each endpoint counts as 1"})
	add(t, r, weighted(sliceOf("ns/canary", "web", endpointOf("10.1.0.3")), "8"))
	if d := r.Update(); !d.Empty() {
		t.Errorf("a weight that does not count changes %v", d)
	}
}

// TestProblemOfService distinguishes Services from other objects.
func TestProblemOfService(t *testing.T) {
	for object, want := range map[string]string{"Service ns/web": "ns/web", "EndpointSlice ns/web": "/", "configuration": "/"} {
		name, ok := Problem{Object: object}.Service()
		if got := name.String(); ok != (want != "/") || ok && got != want {
			t.Errorf("%s is %s, %t", object, got, ok)
		}
	}
}

// TestProblemNamespace checks objects with and without a namespace.
func TestProblemNamespace(t *testing.T) {
	for object, want := range map[string]string{"Service ns/web": "ns", "EndpointSlice ns/web-1": "ns", "Node here": "", "configuration": ""} {
		if got := (Problem{Object: object}).Namespace(); got != want {
			t.Errorf("%s is in %q, want %q", object, got, want)
		}
	}
}

// TestPreserveDestination checks kube-proxy's annotation in a mode that supports it: only
// local endpoints are used, and rows with LoadBalancer addresses have it.
func TestPreserveDestination(t *testing.T) {
	for text, preserves := range map[string]bool{"true": true, "True": false, "": false} {
		for _, can := range []bool{true, false} {
			r := New(Settings{NodeName: testNode, Balancing: Balancing{Preserves: can}})
			add(t, r, serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), func(s *v1.Service) {
				s.Annotations = map[string]string{apiobject.PreserveDestination: text}
			}))
			r.Update()
			for key, row := range r.State().Rows {
				want := preserves && can
				if row.PreserveDestination != want || (row.External == proxy.ScopeLocal) != want {
					t.Errorf("%q, a mode that can: %t: row %v preserves it: %t, and has policy %v; want %t", text, can, key, row.PreserveDestination, row.External, want)
				}
			}
		}
	}
}
