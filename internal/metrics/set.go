package metrics

import (
	"cmp"
	"fmt"
	"slices"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// subsystem begins the name of every metric that kube-proxy could have.
const subsystem = "kubeproxy"

// byFamily is the label of what is counted for each family.
const byFamily = "ip_family"

// set is all metrics that every mode has.
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
	brief := k8s.ExponentialBuckets(0.001, 2, 15) // 1 ms to 16.384 s
	// These are fine where a healthy cluster is, and reach to minutes.
	programming := slices.Concat([]float64{0.25, 0.5},
		k8s.LinearBuckets(1, 1, 59), k8s.LinearBuckets(60, 5, 12), k8s.LinearBuckets(120, 30, 7))
	return set{
		sync:        r.histograms("sync_proxy_rules_duration_seconds", "How long syncs of any kind took, failed ones included", brief),
		syncFull:    r.histograms("sync_full_proxy_rules_duration_seconds", "How long full syncs took", brief),
		syncPartial: r.histograms("sync_partial_proxy_rules_duration_seconds", "How long partial syncs took", brief),
		syncLast:    r.gauges("sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended", byFamily),
		syncQueued:  r.gauges("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for", byFamily),
		programming: r.histograms("network_programming_duration_seconds",
			"From the change that an EndpointSlice names as its trigger to the end of the sync that put it in force", programming),
		endpointsPending: r.gauges("sync_proxy_rules_endpoint_changes_pending",
			"EndpointSlices with changes that are not in force yet").WithLabelValues(),
		servicesPending: r.gauges("sync_proxy_rules_service_changes_pending",
			"Services with changes that are not in force yet").WithLabelValues(),
		endpointChanges: r.counters("sync_proxy_rules_endpoint_changes_total", "Events of EndpointSlices seen").WithLabelValues(),
		serviceChanges:  r.counters("sync_proxy_rules_service_changes_total", "Events of Services seen").WithLabelValues(),
		noLocalEndpoints: r.gauges("sync_proxy_rules_no_local_endpoints_total",
			"Service ports that may use endpoints on this node only, and have them only elsewhere", "traffic_policy", byFamily),
		refused: r.gauges("sync_proxy_rules_refused_service_ports", "Service ports that the kernel refuses and that were set aside", byFamily),
		repairs: r.counters("sync_proxy_rules_repairs_total",
			"Times that another process had changed our rules and they were mended").WithLabelValues(),
		problems: r.gauges("sync_proxy_rules_object_problems",
			"What is wrong with Services and EndpointSlices and keeps a part of them from being used").WithLabelValues(),
		healthz:          r.counters("proxy_healthz_total", "Answers of /healthz", "code"),
		livez:            r.counters("proxy_livez_total", "Answers of /livez", "code"),
		conntrack:        r.histograms("conntrack_reconciler_sync_duration_seconds", "How long a search for stale flows took", brief),
		conntrackDeleted: r.counters("conntrack_reconciler_deleted_entries_total", "Stale flows deleted", byFamily),
	}
}

// registrar makes and registers metrics, and keeps the first error.
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

// own registers what others count, under names that begin with a word.
func (r *registrar) own(begin string, all []proxy.Metric) {
	for _, m := range all {
		c := &collector{metric: m, desc: k8s.NewDesc(begin+"_"+m.Name, m.Help, m.Labels, nil, k8s.ALPHA, "")}
		if err := r.Registry.CustomRegister(c); err != nil {
			r.err = cmp.Or(r.err, fmt.Errorf("register metric %s_%s: %w", begin, m.Name, err))
		}
	}
}

// collector asks a mode when it is asked.
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
