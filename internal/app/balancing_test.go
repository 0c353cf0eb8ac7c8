package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	k8smetrics "k8s.io/component-base/metrics"

	"sluice/internal/apiobject"
	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/metrics"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// balancingOfModes is what an error lists.
func balancingOfModes() string {
	var all []string
	for _, m := range dataplane.Modes() {
		all = append(all, fmt.Sprintf("%s: %s", m.Name, proxy.BalancingWords(m.Balancing)))
	}
	return strings.Join(all, "; ")
}

// TestBalancingBecomesRules: a file says nothing of it, so the flag counts with
// one, too.
func TestBalancingBecomesRules(t *testing.T) {
	for _, tt := range []struct {
		args string
		mode config.ProxyMode
		want proxy.Balancing
	}{
		{"", config.NFTables, proxy.BalanceDefault},
		{"--load-balancing=source-hash", config.NFTables, proxy.SourceHash},
		{"--load-balancing=random --config=/f", config.NFTables, proxy.Random},
		{"--load-balancing=random", config.IPTables, proxy.Random},
	} {
		b, err := parse(t, strings.Fields(tt.args)...).balancing(tt.mode)
		if err != nil || b.Cluster != tt.want || b.Mode != string(tt.mode) || !b.Unweighted {
			t.Errorf("%s, mode %s: %+v, %v; want %v", tt.args, tt.mode, b, err, tt.want)
		}
		rules, err := plan{config: configuration(t), balancing: b}.rules(t.Context(), nil)
		if err != nil || rules.Balancing.Cluster != tt.want {
			t.Errorf("%s: rules %+v, %v", tt.args, rules.Balancing, err)
		}
	}
}

// TestBalancingEvents: the Service is told, and a tenant with many of them does
// not flood the API server.
func TestBalancingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{answers: []int{201}}
		s := &ProxyServer{
			plan: plan{node: "node-1"}, events: api.recorder(t), balancingEvents: rate.NewLimiter(rate.Every(refusalEvery), refusalBurst),
		}
		field := apiobject.AnnotationField(apiobject.LoadBalancing)
		problems := []resolve.Problem{
			{Object: "Service shop/web", Field: "spec.externalIPs[0]", Reason: "another"},
			{Object: "EndpointSlice shop/web", Field: field, Reason: "no Service"},
			{Object: "Service shop/web", Field: field, Reason: "mode m cannot"},
		}
		for i := range 10_000 {
			problems = append(problems, resolve.Problem{Object: fmt.Sprintf("Service shop/flood-%d", i), Field: field, Reason: "mode m cannot"})
		}
		m, err := metrics.New(metrics.Settings{
			Register: func(k8smetrics.Registerable) error { return nil }, CustomRegister: func(k8smetrics.StableCollector) error { return nil },
		})
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
		found := false
		for _, e := range api.events {
			found = found || e.Regarding.Name == "web" && e.Regarding.Kind == "Service" && e.Reason == "LoadBalancingRefused" &&
				e.Note == "node node-1: "+field+": mode m cannot"
		}
		if !found {
			t.Errorf("no event of the first Service in %+v", api.events)
		}
	})
}
