package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/logs"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/fifo" // metrics of client-go's queues
	_ "k8s.io/component-base/metrics/prometheus/restclient"    // metrics of requests to the API server; those of leader election are left out
	_ "k8s.io/component-base/metrics/prometheus/workqueue"     // metrics of libraries' work queues
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/config"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/metrics"
	"sluice/internal/proxy"
	"sluice/internal/zpages"
)

// metricsHandler returns the handler of the metrics server. Metrics are gathered
// from our own registry and from the global one of the libraries.
func (s *ProxyServer) metricsHandler(own k8smetrics.Gatherer) http.Handler {
	c := s.plan.config
	if c.Object.ShowHiddenMetricsForVersion != "" {
		k8smetrics.SetShowHidden()
	}
	return health.MetricsHandler(health.MetricsSettings{
		Metrics: k8smetrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, own}, k8smetrics.HandlerOpts{
			ErrorHandling: k8smetrics.ContinueOnError,
		}),
		Configz:      http.HandlerFunc(s.serveConfigz),
		Mode:         string(c.Mode),
		Profiling:    c.Object.EnableProfiling,
		SetVerbosity: logs.GlogSetter,
		More:         s.zpages(),
	})
}

// zpages returns the handlers of /flagz and /statusz, if their feature gates are
// enabled.
func (s *ProxyServer) zpages() map[string]http.Handler {
	c := &s.plan.config
	pages := map[string]http.Handler{}
	if c.Gates().Enabled(config.GateFlagz) {
		values := map[string]string{}
		for _, f := range s.plan.options.flags {
			values[f.Name] = f.Value.String()
		}
		pages["/flagz"] = zpages.Flagz(values)
	}
	if c.Gates().Enabled(config.GateStatusz) {
		paths := append(slices.Collect(maps.Keys(pages)), "/configz", "/healthz", "/metrics", "/proxyMode")
		if c.Object.EnableProfiling {
			paths = append(paths, "/debug")
		}
		slices.Sort(paths)
		pages["/statusz"] = zpages.Statusz(zpages.Status{
			Started: time.Now(), GoVersion: runtime.Version(), BinaryVersion: s.plan.options.version.reported(),
			EmulationVersion: config.KubernetesVersion, Paths: paths,
		}, s.refusals.list)
	}
	return pages
}

// doubtsMetric returns the metric of how many doubts there are. It has every kind, so
// that an alert sees a doubt begin.
func doubtsMetric(doubts func() []engine.Doubt) proxy.Metric {
	return proxy.Metric{
		Name: "doubts", Help: "Reasons not to trust that Services work as their objects say", Labels: []string{"kind"},
		Read: func(yield func(float64, ...string)) {
			n := map[engine.DoubtKind]int{}
			for _, d := range doubts() {
				n[d.Kind]++
			}
			for _, kind := range engine.DoubtKinds {
				yield(float64(n[kind]), string(kind))
			}
		},
	}
}

// registerBuild registers the metric with the version and origin of this program.
func registerBuild(r k8smetrics.KubeRegistry, i apiversion.Info) error {
	gauge := k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{
		Name: "kubernetes_build_info", Help: "What the proxy was built from and with, always 1", StabilityLevel: k8smetrics.BETA,
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})
	if err := r.Register(gauge); err != nil {
		return fmt.Errorf("register metric %s: %w", gauge.FQName(), err)
	}
	gauge.WithLabelValues(i.Major, i.Minor, i.GitVersion, i.GitCommit, i.GitTreeState, i.BuildDate,
		i.GoVersion, i.Compiler, i.Platform).Set(1)
	return nil
}

// serveConfigz responds with the configuration in force, under its API group's name.
func (s *ProxyServer) serveConfigz(w http.ResponseWriter, _ *http.Request) {
	text, err := json.Marshal(map[string]any{v1alpha1.GroupName: s.configz.Load()})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // an error means that the client is gone
}

// observers implements [engine.Observer]: it forwards what the engine does to
// health, metrics, conntrack, traffic and events. The methods of the embedded
// Metrics handle events of Services and EndpointSlices, and repairs.
type observers struct {
	*ProxyServer
	*metrics.Metrics
}

// Queued implements [engine.Observer].
func (o observers) Queued() {
	o.metrics.Queued()
	o.health.Queued()
}

// NodeSeen implements [engine.Observer].
func (o observers) NodeSeen(n *v1.Node) {
	if n != nil {
		o.checkNode(n)
	}
	o.health.SyncNode(n)
}

// Began implements [engine.Observer].
func (o observers) Began(step *proxy.Delta) {
	if o.conntrack != nil {
		o.conntrack.Applying(step)
	}
	o.metrics.Began()
	o.health.Began()
}

// Done implements [engine.Observer]. It reports what is in force before it reports
// problems.
func (o observers) Done(_ context.Context, r engine.Result) {
	if r.Err == nil {
		if o.conntrack != nil {
			o.conntrack.Applied(r.State.Node, r.Changed, r.Full)
		}
		if o.traffic != nil {
			o.traffic.Applied(r.State.Node, r.Changed)
		}
		o.checks.Applied(r.Changed)
		o.relay.Applied(r.State, r.Changed)
		o.metrics.Applied(r.Changed)
		o.markReady()
	}
	o.reportProblems(r.Found)
	o.metrics.Problems(r.Problems)
	if r.Refusals {
		o.countRefused()
		o.refusals.changed()
	}
	o.metrics.Done(r.Full, r.Err)
	o.health.Done(r.Err)
	if d, ok := o.dataplane.(proxy.Measured); ok && r.Err != nil {
		d.SyncFailed(r.Full)
	}
}

// countRefused updates the metric of refused rows.
func (s *ProxyServer) countRefused() {
	var n [len(proxy.Families)]int
	for _, row := range s.refusals.rows() {
		n[row.Key.Family]++
	}
	for _, f := range s.families {
		s.metrics.Refused(f, n[f])
	}
}
