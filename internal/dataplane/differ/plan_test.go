package differ

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/proxy"
)

// TestPlan plans from one random state to the next, after a change by another process. Plan must
// write nothing, and writing what it returns must have the result of a Sync.
func TestPlan(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		k := &kernel{objects: map[string]string{}, limit: 1 + r.IntN(5)}
		first := state(r, proxy.NewState())
		if _, err := New(k.mode()).Sync(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		vandalise(r, k)
		was, next := maps.Clone(k.objects), state(r, first)
		plan, refused, err := Plan(t.Context(), k.mode(), next)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(was, k.objects); diff != "" {
			t.Fatalf("seed %d: something was written:\n%s", seed, diff)
		}
		var some []*Change[string, string]
		for _, p := range plan {
			some = append(some, p.Change)
		}
		if err := k.write(t.Context(), some); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(want(next, refused), k.objects); diff != "" {
			t.Fatalf("seed %d: what was planned (-want +got):\n%s", seed, diff)
		}
	}
}

// TestPlanRows checks that Plan returns the rows of each object, in the order of their keys.
func TestPlanRows(t *testing.T) {
	k := &kernel{objects: map[string]string{}}
	s := proxy.NewState()
	for i := range 8 {
		s.Rows[key(i)] = &proxy.ServicePort{
			Key: key(i), Frontends: []proxy.Frontend{{Addr: at(172, i)}}, Cluster: []proxy.Endpoint{{Addr: at(10, i/4)}},
		}
	}
	h := &proxy.HealthCheck{Key: proxy.HealthCheckKey{Name: key(3).Name}, Port: 1}
	s.HealthChecks = map[proxy.HealthCheckKey]*proxy.HealthCheck{h.Key: h}
	plan, _, err := Plan(t.Context(), k.mode(), s)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, p := range plan {
		rows[p.ID] = ""
		for _, row := range p.Rows {
			rows[p.ID] += row.Name + " "
		}
	}
	want := map[string]string{
		"base": "", gate: "", check + "svc-3": "svc-3 ", chosen + "1": "svc-0 svc-1 svc-2 svc-3 svc-4 svc-5 svc-6 svc-7 ",
		list + "10.0.0.0:80": "svc-0 svc-1 svc-2 svc-3 ", list + "10.0.0.1:80": "svc-4 svc-5 svc-6 svc-7 ",
	}
	for i := range 8 {
		want[door+at(172, i).String()] = key(i).Name + " "
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows of objects (-want +got):\n%s", diff)
	}
}
