package metrics

import (
	"slices"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
)

// subsystem begins the name of every metric.
const subsystem = "kubeproxy"

// The names of labels.
const (
	byFamily = "ip_family"
	byPolicy = "traffic_policy"
	byCode   = "code"
	byTable  = "table"
)

// set is all metrics, registered or not.
type set struct {
	sync, syncFull, syncPartial *k8s.HistogramVec
	syncLast, syncQueued        *k8s.GaugeVec
	programming                 *k8s.HistogramVec
	endpointsPending            *k8s.Gauge
	endpointChanges             *k8s.Counter
	servicesPending             *k8s.Gauge
	serviceChanges              *k8s.Counter
	noLocalEndpoints            *k8s.GaugeVec
	healthz, livez              *k8s.CounterVec
	conntrack                   *k8s.HistogramVec
	conntrackDeleted            *k8s.CounterVec
	iptRules, iptWritten        *k8s.GaugeVec
	iptRestoreFailures          *k8s.CounterVec
	iptPartialFailures          *k8s.CounterVec
	nftSyncFailures             *k8s.CounterVec
	nftCleanupFailures          *k8s.CounterVec
	refused                     *k8s.GaugeVec
}

func newSet() set {
	brief := k8s.ExponentialBuckets(0.001, 2, 15) // 1 ms to 16.384 s
	return set{
		sync:        histograms("sync_proxy_rules_duration_seconds", "How long syncs of any kind took, failed ones included", brief),
		syncFull:    histograms("sync_full_proxy_rules_duration_seconds", "How long full syncs took", brief),
		syncPartial: histograms("sync_partial_proxy_rules_duration_seconds", "How long partial syncs took", brief),
		syncLast:    gauges("sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended", byFamily),
		syncQueued:  gauges("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for", byFamily),
		programming: histograms("network_programming_duration_seconds",
			"From the change that an EndpointSlice names as its trigger to the end of the sync that put it in force", programmingBuckets()),
		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending", "EndpointSlices with changes that are not in force yet"),
		endpointChanges:  counter("sync_proxy_rules_endpoint_changes_total", "Events of EndpointSlices seen"),
		servicesPending:  gauge("sync_proxy_rules_service_changes_pending", "Services with changes that are not in force yet"),
		serviceChanges:   counter("sync_proxy_rules_service_changes_total", "Events of Services seen"),
		noLocalEndpoints: gauges("sync_proxy_rules_no_local_endpoints_total",
			"Service ports that may use endpoints on this node only, and have them only elsewhere", byPolicy, byFamily),
		healthz:            counters("proxy_healthz_total", "Answers of /healthz", byCode),
		livez:              counters("proxy_livez_total", "Answers of /livez", byCode),
		conntrack:          histograms("conntrack_reconciler_sync_duration_seconds", "How long a search for stale flows took", brief),
		conntrackDeleted:   counters("conntrack_reconciler_deleted_entries_total", "Stale flows deleted", byFamily),
		iptRules:           gauges("sync_proxy_rules_iptables_total", "Rules of ours in iptables", byTable, byFamily),
		iptWritten:         gauges("sync_proxy_rules_iptables_last", "Rules that the last sync wrote to iptables", byTable, byFamily),
		iptRestoreFailures: counters("sync_proxy_rules_iptables_restore_failures_total", "Restores of iptables that failed", byFamily),
		iptPartialFailures: counters("sync_proxy_rules_iptables_partial_restore_failures_total", "Partial syncs of iptables that failed", byFamily),
		nftSyncFailures:    counters("sync_proxy_rules_nftables_sync_failures_total", "Transactions of nftables that failed", byFamily),
		nftCleanupFailures: counters("sync_proxy_rules_nftables_cleanup_failures_total", "Deletions of stale nftables chains that failed", byFamily),
		refused:            gauges("sync_proxy_rules_refused_service_ports", "Service ports that the kernel refuses and that were set aside", byFamily),
	}
}

// of returns what a mode has.
func (s *set) of(m config.ProxyMode) []k8s.Registerable {
	all := []k8s.Registerable{
		s.sync, s.syncFull, s.syncPartial, s.syncLast, s.syncQueued, s.programming,
		s.endpointsPending, s.endpointChanges, s.servicesPending, s.serviceChanges, s.noLocalEndpoints,
		s.healthz, s.livez, s.conntrack, s.conntrackDeleted, s.refused,
	}
	switch m {
	case config.NFTables, config.EBPF: // eBPF has nftables beneath
		return append(all, s.nftSyncFailures, s.nftCleanupFailures)
	case config.IPTables:
		return append(all, s.iptRules, s.iptWritten, s.iptRestoreFailures, s.iptPartialFailures)
	case config.IPVS:
		return append(all, s.iptRestoreFailures)
	case config.Userspace:
		return all
	default:
		panic("unknown mode " + string(m))
	}
}

// programmingBuckets are fine where a healthy cluster is, and reach to minutes.
func programmingBuckets() []float64 {
	return slices.Concat(
		[]float64{0.25, 0.5},
		k8s.LinearBuckets(1, 1, 59),
		k8s.LinearBuckets(60, 5, 12),
		k8s.LinearBuckets(120, 30, 7),
	)
}

func histograms(name, help string, buckets []float64) *k8s.HistogramVec {
	o := &k8s.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: k8s.ALPHA}
	return k8s.NewHistogramVec(o, []string{byFamily})
}

func gauges(name, help string, labels ...string) *k8s.GaugeVec {
	o := &k8s.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA}
	return k8s.NewGaugeVec(o, labels)
}

func counters(name, help string, labels ...string) *k8s.CounterVec {
	o := &k8s.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA}
	return k8s.NewCounterVec(o, labels)
}

func gauge(name, help string) *k8s.Gauge {
	return k8s.NewGauge(&k8s.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA})
}

func counter(name, help string) *k8s.Counter {
	return k8s.NewCounter(&k8s.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: k8s.ALPHA})
}
