package app

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	k8smetrics "k8s.io/component-base/metrics"

	"sluice/internal/apiobject"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/metrics"
	"sluice/internal/resolve"
)

// TestProblemEvents checks that a problem becomes an event of its Service, and that
// a tenant with many of them does not flood the API server.
func TestProblemEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{answers: []int{201}}
		s := &ProxyServer{
			plan: plan{node: "node-1"}, events: api.recorder(t), problemEvents: rate.NewLimiter(rate.Every(refusalEvery), refusalBurst),
		}
		field := apiobject.AnnotationField(apiobject.LoadBalancing)
		problems := []resolve.Problem{
			{Object: "Service shop/web", Field: "spec.externalIPs[0]", Reason: "another"},
			{Object: "EndpointSlice shop/web", Field: field, Reason: "no Service"},
			{Object: "Service shop/web", Field: field, Reason: "mode m cannot"},
			{Object: "Service shop/web", Field: "spec.externalIPs[1]", Reason: "not allowed", Denied: netip.IPv6Loopback()},
		}
		for i := range 10_000 {
			problems = append(problems, resolve.Problem{Object: fmt.Sprintf("Service shop/flood-%d", i), Field: field, Reason: "mode m cannot"})
		}
		m, err := metrics.New(metrics.Settings{Registry: k8smetrics.NewKubeRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		s.metrics, s.health = m, health.NewProxyHealth(health.Settings{Healthz: m.Healthz, Livez: m.Livez})
		// The objects are as they are, whether or not the kernel could be written.
		observers{s, m}.Done(t.Context(), engine.Result{Found: problems, Err: errors.New("any")})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(api.events) != refusalBurst {
			t.Fatalf("%d events; want %d", len(api.events), refusalBurst)
		}
		found := map[string]string{}
		for _, e := range api.events {
			if e.Regarding.Name == "web" && e.Regarding.Kind == "Service" {
				found[e.Reason] = e.Note
			}
		}
		want := map[string]string{
			"LoadBalancingRefused": "node node-1: " + field + ": mode m cannot",
			"AddressNotAllowed":    "node node-1: spec.externalIPs[1]: not allowed",
		}
		if !maps.Equal(found, want) {
			t.Errorf("events of the first Service: %v; want %v", found, want)
		}
	})
}
