package app

import (
	"encoding/json"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/logs"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // how we and the API server get on
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/config"
	"sluice/internal/health"
)

// metricsHandler answers the metrics server's paths: with our own registry, and
// with the one that the libraries share.
func metricsHandler(c config.Configuration, own k8smetrics.Gatherer, configz http.Handler) http.Handler {
	if c.ShowHiddenMetricsForVersion != "" {
		k8smetrics.SetShowHidden()
	}
	return health.MetricsHandler(health.MetricsSettings{
		Metrics: k8smetrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, own}, k8smetrics.HandlerOpts{
			ErrorHandling: k8smetrics.ContinueOnError,
		}),
		Configz:      configz,
		Mode:         string(c.Mode),
		Profiling:    c.EnableProfiling,
		SetVerbosity: logs.GlogSetter,
	})
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
