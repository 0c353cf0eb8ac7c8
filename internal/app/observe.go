package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/logs"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/fifo" // how we and the API server get on
	_ "k8s.io/component-base/metrics/prometheus/restclient"    // the same; leader election, which we have none of, is left out
	_ "k8s.io/component-base/metrics/prometheus/workqueue"     // queues of libraries
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/config"
	"sluice/internal/health"
	"sluice/internal/zpages"
)

// metricsHandler answers the metrics server's paths: with our own registry, and
// with the one that the libraries share.
func (s *ProxyServer) metricsHandler(own k8smetrics.Gatherer) http.Handler {
	c := s.plan.config
	if c.Object.ShowHiddenMetricsForVersion != "" {
		k8smetrics.SetShowHidden()
	}
	return health.MetricsHandler(health.MetricsSettings{
		Metrics: k8smetrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, own}, k8smetrics.HandlerOpts{
			ErrorHandling: k8smetrics.ContinueOnError,
		}),
		Configz:      &s.configz,
		Mode:         string(c.Mode),
		Profiling:    c.Object.EnableProfiling,
		SetVerbosity: logs.GlogSetter,
		More:         s.zpages(),
	})
}

// zpages answers what the feature gates allow of /flagz and /statusz.
func (s *ProxyServer) zpages() map[string]http.Handler {
	c := &s.plan.config
	pages := map[string]http.Handler{}
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode"}
	if c.Object.EnableProfiling {
		paths = append(paths, "/debug")
	}
	if c.Gate(config.GateFlagz) {
		pages["/flagz"] = zpages.Flagz(s.plan.flags)
		paths = append(paths, "/flagz")
	}
	if c.Gate(config.GateStatusz) {
		slices.Sort(paths)
		pages["/statusz"] = zpages.Statusz(zpages.Status{
			Started: time.Now(), GoVersion: runtime.Version(), BinaryVersion: s.plan.version,
			EmulationVersion: config.KubernetesVersion, Paths: paths,
		}, s.refusals.list)
	}
	return pages
}

// registerBuild adds the metric that tells what this program was built from.
func registerBuild(r k8smetrics.KubeRegistry, i apiversion.Info) error {
	known := k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{
		Name: "kubernetes_build_info", Help: "What the proxy was built from and with, always 1", StabilityLevel: k8smetrics.BETA,
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})
	if err := r.Register(known); err != nil {
		return fmt.Errorf("register metric %s: %w", known.FQName(), err)
	}
	known.WithLabelValues(i.Major, i.Minor, i.GitVersion, i.GitCommit, i.GitTreeState, i.BuildDate,
		i.GoVersion, i.Compiler, i.Platform).Set(1)
	return nil
}

// configz tells the configuration that is in force.
type configz struct {
	object atomic.Pointer[v1alpha1.KubeProxyConfiguration]
}

func (z *configz) set(o *v1alpha1.KubeProxyConfiguration) { z.object.Store(o) }

// ServeHTTP answers with the configuration under its group's name.
func (z *configz) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := json.Marshal(map[string]any{v1alpha1.GroupName: z.object.Load()})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // the client has gone
}
