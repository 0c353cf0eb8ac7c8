package metrics

import (
	"cmp"
	"fmt"
	"slices"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// subsystem is the prefix of metrics that kube-proxy has or could have.
const subsystem = "kubeproxy"

// byFamily is the label of metrics that are kept for each family.
const byFamily = "ip_family"

// set has the metrics of all modes.
type set struct {
	sync, syncFull, syncPartial       *k8s.HistogramVec
	programming, conntrack            *k8s.HistogramVec
	syncLast, syncQueued              *k8s.GaugeVec
	noLocalEndpoints, refused         *k8s.GaugeVec
	healthz, livez, conntrackDeleted  *k8s.CounterVec
	endpointsPending, servicesPending k8s.GaugeMetric
	endpointChanges, serviceChanges   k8s.CounterMetric
	repairs                           k8s.CounterMetric
	problems                          k8s.GaugeMetric
}

func newSet(r *registrar) set {
	duration := k8s.ExponentialBuckets(0.001, 2, 15) // 1 ms to 16.384 s
	// Fine buckets for the latencies of a healthy cluster, coarse ones up to 5 minutes.
	programming := slices.Concat([]float64{0.25, 0.5},
		k8s.LinearBuckets(1, 1, 59), k8s.LinearBuckets(60, 5, 12), k8s.LinearBuckets(120, 30, 7))
	return set{
		sync:        r.histograms("sync_proxy_rules_duration_seconds", "Duration of syncs, full and partial, including failed ones", duration),
		syncFull:    r.histograms("sync_full_proxy_rules_duration_seconds", "Duration of full syncs", duration),
		syncPartial: r.histograms("sync_partial_proxy_rules_duration_seconds", "Duration of partial syncs", duration),
		syncLast:    r.gauges("sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended", byFamily),
		syncQueued:  r.gauges("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last requested", byFamily),
		programming: r.histograms("network_programming_duration_seconds",
			"Time from the change that triggered an EndpointSlice's update to the end of the sync that put it in force", programming),
		endpointsPending: r.gauges("sync_proxy_rules_endpoint_changes_pending",
			"EndpointSlices with changes that are not in force yet").WithLabelValues(),
		servicesPending: r.gauges("sync_proxy_rules_service_changes_pending",
			"Services with changes that are not in force yet").WithLabelValues(),
		endpointChanges: r.counters("sync_proxy_rules_endpoint_changes_total", "EndpointSlice events received").WithLabelValues(),
		serviceChanges:  r.counters("sync_proxy_rules_service_changes_total", "Service events received").WithLabelValues(),
		noLocalEndpoints: r.gauges("sync_proxy_rules_no_local_endpoints_total",
			"Service ports with traffic policy Local whose usable endpoints are all on other nodes", "traffic_policy", byFamily),
		refused: r.gauges("sync_proxy_rules_refused_service_ports", "Service ports that the kernel refuses, while all others are served", byFamily),
		repairs: r.counters("sync_proxy_rules_repairs_total",
			"Repairs of rules that another process had changed").WithLabelValues(),
		problems: r.gauges("sync_proxy_rules_object_problems",
			"Problems of Services and EndpointSlices that keep a part of them from being used").WithLabelValues(),
		healthz:          r.counters("proxy_healthz_total", "Responses of /healthz by status code", "code"),
		livez:            r.counters("proxy_livez_total", "Responses of /livez by status code", "code"),
		conntrack:        r.histograms("conntrack_reconciler_sync_duration_seconds", "Duration of searches for stale flows", duration),
		conntrackDeleted: r.counters("conntrack_reconciler_deleted_entries_total", "Stale flows deleted", byFamily),
	}
}

// registrar creates and registers metrics, and keeps the first error.
type registrar struct {
	Settings
	err error
}

func register[M k8s.Registerable](r *registrar, m M) M {
	if err := r.Registry.Register(m); err != nil {
		r.err = cmp.Or(r.err, fmt.Errorf("register metric %s: %w", m.FQName(), err))
	}
	return m
}

func (r *registrar) histograms(name, help string, buckets []float64) *k8s.HistogramVec {
	o := &k8s.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: k8s.ALPHA}
	return register(r, k8s.NewHistogramVec(o, []string{byFamily}))
}

func (r *registrar) gauges(name, help string, labels ...string) *k8s.GaugeVec {
	o := &k8s.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA}
	return register(r, k8s.NewGaugeVec(o, labels))
}

func (r *registrar) counters(name, help string, labels ...string) *k8s.CounterVec {
	o := &k8s.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA}
	return register(r, k8s.NewCounterVec(o, labels))
}

// registerReaders registers metrics that are read when they are scraped, with a
// prefix to their names.
func (r *registrar) registerReaders(prefix string, all []proxy.Metric) {
	for _, m := range all {
		name := prefix + "_" + m.Name
		c := &collector{metric: m, desc: k8s.NewDesc(name, m.Help, m.Labels, nil, k8s.ALPHA, "")}
		if err := r.Registry.CustomRegister(c); err != nil {
			r.err = cmp.Or(r.err, fmt.Errorf("register metric %s: %w", name, err))
		}
	}
}

// collector reads a metric each time it is scraped.
type collector struct {
	k8s.BaseStableCollector
	metric proxy.Metric
	desc   *k8s.Desc
}

func (c *collector) DescribeWithStability(ch chan<- *k8s.Desc) { ch <- c.desc }

func (c *collector) CollectWithStability(ch chan<- k8s.Metric) {
	kind := k8s.GaugeValue
	if c.metric.Grows {
		kind = k8s.CounterValue
	}
	c.metric.Read(func(value float64, labels ...string) {
		ch <- k8s.NewLazyConstMetric(c.desc, kind, value, labels...)
	})
}
