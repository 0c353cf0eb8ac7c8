package metrics

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// exposed is one metric as a scrape returns it.
type exposed struct {
	Name    string
	Type    string
	Labels  string // names, sorted
	Buckets string // of histograms: "brief" or "programming"
}

// The metrics that every mode has.
var everywhere = []exposed{
	{"kubeproxy_conntrack_reconciler_deleted_entries_total", "COUNTER", "ip_family", ""},
	{"kubeproxy_conntrack_reconciler_sync_duration_seconds", "HISTOGRAM", "ip_family", "brief"},
	{"kubeproxy_network_programming_duration_seconds", "HISTOGRAM", "ip_family", "programming"},
	{"kubeproxy_proxy_healthz_total", "COUNTER", "code", ""},
	{"kubeproxy_proxy_livez_total", "COUNTER", "code", ""},
	{"kubeproxy_sync_full_proxy_rules_duration_seconds", "HISTOGRAM", "ip_family", "brief"},
	{"kubeproxy_sync_partial_proxy_rules_duration_seconds", "HISTOGRAM", "ip_family", "brief"},
	{"kubeproxy_sync_proxy_rules_duration_seconds", "HISTOGRAM", "ip_family", "brief"},
	{"kubeproxy_sync_proxy_rules_endpoint_changes_pending", "GAUGE", "", ""},
	{"kubeproxy_sync_proxy_rules_endpoint_changes_total", "COUNTER", "", ""},
	{"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "GAUGE", "ip_family", ""},
	{"kubeproxy_sync_proxy_rules_last_timestamp_seconds", "GAUGE", "ip_family", ""},
	{"kubeproxy_sync_proxy_rules_no_local_endpoints_total", "GAUGE", "ip_family traffic_policy", ""},
	{"kubeproxy_sync_proxy_rules_object_problems", "GAUGE", "", ""},
	{"kubeproxy_sync_proxy_rules_refused_service_ports", "GAUGE", "ip_family", ""},
	{"kubeproxy_sync_proxy_rules_repairs_total", "COUNTER", "", ""},
	{"kubeproxy_sync_proxy_rules_service_changes_pending", "GAUGE", "", ""},
	{"kubeproxy_sync_proxy_rules_service_changes_total", "COUNTER", "", ""},
}

// ownMetrics is what a mode might count.
var ownMetrics = []proxy.Metric{
	{Name: "mode_packets_total", Help: "Packets that the mode has seen", Grows: true, Read: func(yield func(float64, ...string)) { yield(3) }},
	{Name: "mode_rules", Help: "Rules that the mode has written", Labels: []string{"table", "ip_family"}, Read: func(yield func(float64, ...string)) {
		yield(7, "nat", "IPv4")
		yield(8, "filter", "IPv4")
	}},
}

var ownExposed = []exposed{
	{"kubeproxy_mode_packets_total", "COUNTER", "", ""},
	{"kubeproxy_mode_rules", "GAUGE", "ip_family table", ""},
}

// briefBuckets and programmingWant are the upper bounds.
var briefBuckets = []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}

func programmingWant() []float64 {
	want := []float64{0.25, 0.5}
	for n := 1; n <= 59; n++ {
		want = append(want, float64(n))
	}
	for n := 60; n <= 115; n += 5 {
		want = append(want, float64(n))
	}
	for n := 120; n <= 300; n += 30 {
		want = append(want, float64(n))
	}
	return want
}

func newMetrics(t *testing.T, r k8s.KubeRegistry, own ...proxy.Metric) *Metrics {
	t.Helper()
	all, err := New(Settings{Registry: r, Families: proxy.Families[:], Mode: own})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// useAll calls every method at least once, and syncs twice.
func useAll(m *Metrics) {
	rows := &proxy.Delta{}
	for _, f := range proxy.Families {
		m.ConntrackReconciled(f, time.Second, 2)
		m.Refused(f, 1)
		rows.Upserts = append(rows.Upserts, proxy.Upsert{New: row("a", f, internalLocal, externalLocal)})
	}
	m.Queued()
	m.EndpointSliceSeen(nil, sliceAt(time.Now().Add(time.Hour), discoveryv1.AddressTypeIPv4), 1)
	m.EndpointSliceSeen(nil, sliceAt(time.Now().Add(time.Hour), discoveryv1.AddressTypeIPv6), 1)
	m.ServiceSeen(1)
	m.Began()
	m.Applied(rows)
	m.Done(true, nil)
	m.Began()
	m.Done(false, errSync)
	m.Repairing()
	m.Problems(3)
	m.Healthz(200)
	m.Livez(503)
}

func TestExposition(t *testing.T) {
	for _, tt := range []struct {
		name string
		own  []proxy.Metric
		want []exposed
	}{
		{"a mode that counts nothing", nil, everywhere},
		{"a mode that counts something", ownMetrics, slices.Concat(everywhere, ownExposed)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := k8s.NewKubeRegistry()
			useAll(newMetrics(t, r, tt.own...))
			slices.SortFunc(tt.want, func(a, b exposed) int { return strings.Compare(a.Name, b.Name) })
			if diff := cmp.Diff(tt.want, expose(t, r)); diff != "" {
				t.Errorf("exposition mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// expose gathers all metrics.
func expose(t *testing.T, r k8s.KubeRegistry) []exposed {
	t.Helper()
	gathered, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	buckets := map[string][]float64{"brief": briefBuckets, "programming": programmingWant()}
	var out []exposed
	for _, f := range gathered {
		e := exposed{Name: f.GetName(), Type: f.GetType().String()}
		if help := f.GetHelp(); !strings.HasPrefix(help, "[ALPHA] ") || len(help) < 20 {
			t.Errorf("%s: help %q", e.Name, help)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			e.Labels = strings.Join(labels, " ")
			var bounds []float64
			for _, b := range m.GetHistogram().GetBucket() {
				bounds = append(bounds, b.GetUpperBound())
			}
			for name, want := range buckets {
				if slices.Equal(bounds, want) {
					e.Buckets = name
				}
			}
			if len(bounds) > 0 && e.Buckets == "" {
				t.Errorf("%s: buckets %v", e.Name, bounds)
			}
		}
		out = append(out, e)
	}
	return out
}

// values returns the samples of a metric by their label values, sorted by label
// name; of histograms the number of samples.
func values(t *testing.T, r k8s.KubeRegistry, name string) map[string]float64 {
	t.Helper()
	gathered, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range gathered {
		if f.GetName() != "kubeproxy_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			var key []string
			for _, l := range m.GetLabel() {
				key = append(key, l.GetValue())
			}
			switch {
			case m.GetHistogram() != nil:
				out[strings.Join(key, " ")] = float64(m.GetHistogram().GetSampleCount())
			case m.GetGauge() != nil:
				out[strings.Join(key, " ")] = m.GetGauge().GetValue()
			default:
				out[strings.Join(key, " ")] = m.GetCounter().GetValue()
			}
		}
	}
	return out
}

func wantValues(t *testing.T, r k8s.KubeRegistry, name string, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, values(t, r, name)); diff != "" {
		t.Errorf("%s mismatch (-want +got):\n%s", name, diff)
	}
}

func TestValues(t *testing.T) {
	r := k8s.NewKubeRegistry()
	m := newMetrics(t, r, ownMetrics...)
	useAll(m)
	m.Healthz(200)
	m.Healthz(503)
	both := func(v float64) map[string]float64 { return map[string]float64{"IPv4": v, "IPv6": v} }
	wantValues(t, r, "proxy_healthz_total", map[string]float64{"200": 2, "503": 1})
	wantValues(t, r, "proxy_livez_total", map[string]float64{"503": 1})
	wantValues(t, r, "sync_proxy_rules_duration_seconds", both(2))
	wantValues(t, r, "sync_full_proxy_rules_duration_seconds", both(1))
	wantValues(t, r, "sync_partial_proxy_rules_duration_seconds", both(1))
	wantValues(t, r, "conntrack_reconciler_deleted_entries_total", both(2))
	wantValues(t, r, "sync_proxy_rules_no_local_endpoints_total",
		map[string]float64{"IPv4 internal": 1, "IPv4 external": 1, "IPv6 internal": 1, "IPv6 external": 1})
	wantValues(t, r, "sync_proxy_rules_refused_service_ports", both(1))
	wantValues(t, r, "network_programming_duration_seconds", both(1))
	wantValues(t, r, "mode_packets_total", map[string]float64{"": 3})
	wantValues(t, r, "mode_rules", map[string]float64{"IPv4 nat": 7, "IPv4 filter": 8})
}

func TestRegisteredOnce(t *testing.T) {
	r := k8s.NewKubeRegistry()
	s := Settings{Registry: r}
	if _, err := New(s); err != nil {
		t.Fatal(err)
	}
	if _, err := New(s); err == nil || !strings.Contains(err.Error(), "register metric kubeproxy_") {
		t.Errorf("error %v of a second registration; want one that names a metric", err)
	}
}

// TestModeMetricsAreReadOnDemand checks that metrics of a mode are read only when
// they are gathered.
func TestModeMetricsAreReadOnDemand(t *testing.T) {
	r := k8s.NewKubeRegistry()
	reads := 0.0
	newMetrics(t, r, proxy.Metric{Name: "reads", Help: "How often somebody asked for it", Read: func(yield func(float64, ...string)) {
		reads++
		yield(reads)
	}})
	if reads != 0 {
		t.Fatalf("%v reads before metrics were gathered", reads)
	}
	wantValues(t, r, "reads", map[string]float64{"": 1})
	wantValues(t, r, "reads", map[string]float64{"": 2})
}
