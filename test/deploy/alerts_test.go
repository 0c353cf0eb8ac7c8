package deploy

import (
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	alertsFile = root + "/deploy/prometheus/alerts.yaml"
	runbook    = root + "/docs/runbook.md"
)

// alertCases has for each alert series under which it fires, and such as come
// close and are no reason to wake anybody. There is a sample each minute of half
// an hour. Every series gets the labels of one node.
var alertCases = map[string]struct{ fires, quiet [][]string }{
	"SluiceDown": {
		fires: [][]string{{`up{job="kube-system/sluice"} 0x30`}, {`up{job="kube-proxy"} 0x30`}},
		quiet: [][]string{
			{`up{job="kube-system/sluice"} 1x30`}, {`up{job="node-exporter"} 0x30`, `up{job="sluice"} 1x30`}, {`up{job="sluice"} 1x20 0x3 1x7`},
		},
	},
	"SluiceAbsent": {
		fires: [][]string{{`up{job="node-exporter"} 1x30`}, {`up{job="sluice"} 1x10`}},
		quiet: [][]string{{`up{job="kube-proxy"} 1x30`}, {`up{job="sluice"} 1x10 _x9 1x11`}},
	},
	"SluiceUnhealthy": {
		fires: [][]string{{`kubeproxy_proxy_livez_total{code="503"} 0+6x30`}},
		quiet: [][]string{{`kubeproxy_proxy_livez_total{code="200"} 0+6x30`, `kubeproxy_proxy_livez_total{code="503"} 0x5 7x25`}},
	},
	"SluiceSyncStale": {
		fires: [][]string{
			{
				`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 61x30`,
				`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 60x30`,
			},
			{`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1x30`},
		},
		quiet: [][]string{
			{ // idle
				`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 60x30`,
				`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 61x30`,
			},
			{ // the next one is always queued already
				`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 0+60x30`,
				`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} -1+60x30`,
			},
		},
	},
	"SluiceSyncFailing": {
		fires: [][]string{
			{`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0+1x30`},
			{`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 0+2x30`},
		},
		quiet: [][]string{{`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0x8 3x22`}},
	},
	"SluiceServicePortsRefused": {
		fires: [][]string{{
			`kubeproxy_sync_proxy_rules_refused_service_ports{ip_family="IPv4"} 0x30`,
			`kubeproxy_sync_proxy_rules_refused_service_ports{ip_family="IPv6"} 2x30`,
		}},
		quiet: [][]string{{`kubeproxy_sync_proxy_rules_refused_service_ports{ip_family="IPv4"} 0x10 1x3 0x12 2x4`}},
	},
	"SluiceDoubt": {
		fires: [][]string{{`sluice_doubts{kind="RulesChanged"} 1x30`}},
		quiet: [][]string{{`sluice_doubts{kind="RulesChanged"} 0x10 1x3 0x16`}, {`sluice_doubts{kind="ServicePortsRefused"} 1x30`}, {`sluice_doubts{kind="NotSynced"} 1x30`, `sluice_doubts{kind="ConntrackNearlyFull"} 1x30`, `sluice_doubts{kind="SyncFailing"} 1x30`}},
	},
	"SluiceProgrammingSlow": {
		fires: [][]string{{
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="10"} 0+97x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="59"} 0+100x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 0+100x30`,
		}},
		quiet: [][]string{{
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="10"} 0+100x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="59"} 0+100x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 0+100x30`,
		}},
	},
	"SluiceAPIServerErrors": {
		fires: [][]string{
			{`rest_client_requests_total{code="<error>"} 0+6x30`, `kubeproxy_sync_proxy_rules_service_changes_total 7x30`},
			{
				`rest_client_requests_total{code="403"} 0+6x30`, `rest_client_requests_total{code="200"} 0+1x30`,
				`kubeproxy_sync_proxy_rules_service_changes_total 7x30`,
			},
		},
		quiet: [][]string{
			{`rest_client_requests_total{code="500"} 0+6x30`}, // another program's
			{
				`rest_client_requests_total{code="500"} 0+1x30`, `rest_client_requests_total{code="200"} 0+2x30`,
				`kubeproxy_sync_proxy_rules_service_changes_total 7x30`,
			},
			{`rest_client_requests_total{code="404"} 0+1x30`, `kubeproxy_sync_proxy_rules_service_changes_total 7x30`},
		},
	},
	"SluiceAPIServerSilent": {
		fires: [][]string{{
			`sluice_source_last_contact_timestamp_seconds{resource="services"} 0+60x30`,
			`sluice_source_last_contact_timestamp_seconds{resource="endpointslices"} 0+60x5 300x25`,
		}},
		quiet: [][]string{{
			`sluice_source_last_contact_timestamp_seconds{resource="services"} 0+60x30`,
			`sluice_source_last_contact_timestamp_seconds{resource="endpointslices"} 0x6 360+60x24`,
		}},
	},
	"SluiceRulesChangedByOthers": {
		fires: [][]string{{`kubeproxy_sync_proxy_rules_repairs_total 0+1x30`}},
		quiet: [][]string{{`kubeproxy_sync_proxy_rules_repairs_total 0x15 4x15`}},
	},
	"SluiceObjectProblems": {
		fires: [][]string{{`kubeproxy_sync_proxy_rules_object_problems 1x30`}},
		quiet: [][]string{{`kubeproxy_sync_proxy_rules_object_problems 0x20 3x10`}},
	},
	"SluiceConntrackNearlyFull": {
		fires: [][]string{{`sluice_conntrack_entries 950x30`, `sluice_conntrack_entries_limit 1000x30`}},
		quiet: [][]string{{`sluice_conntrack_entries 900x30`, `sluice_conntrack_entries_limit 1000x30`}},
	},
	"SluiceServiceRefusesTraffic": {
		fires: [][]string{
			{`sluice_service_refused_packets_total{service_namespace="ns",service_name="web",service_port="http",reason="NoEndpoints"} 0+60x30`},
			{`sluice_service_refused_packets_total{service_namespace="ns",service_name="web",service_port="http",reason="NoLocalEndpoint"} 0+60x30`},
		},
		quiet: [][]string{
			{`sluice_service_refused_packets_total{service_namespace="ns",service_name="web",service_port="http",reason="SourceRange"} 0+60x30`},
			{`sluice_service_refused_packets_total{service_namespace="ns",service_name="web",service_port="http",reason="NoEndpoints"} 0+5x30`},
			{`sluice_service_refused_packets_total{service_namespace="ns",service_name="web",service_port="http",reason="NoEndpoints"} 0x9 900x21`},
		},
	},
	"SluiceTrafficNotCounted": {
		fires: [][]string{{`sluice_service_traffic_lost_events_total 0x5 1x25`}},
		quiet: [][]string{{`sluice_service_traffic_lost_events_total 7x30`}},
	},
	"SluiceAffinityNearlyFull": {
		fires: [][]string{{
			`kubeproxy_nftables_affinity_clients{ip_family="IPv4"} 91x30`,
			`kubeproxy_nftables_affinity_clients_limit{ip_family="IPv4"} 100x30`,
		}},
		quiet: [][]string{{
			`kubeproxy_nftables_affinity_clients{ip_family="IPv4"} 90x30`,
			`kubeproxy_nftables_affinity_clients_limit{ip_family="IPv4"} 100x30`,
		}},
	},
	"SluiceUserspaceNearlyFull": {
		fires: [][]string{{
			`kubeproxy_userspace_connections{protocol="TCP"} 95x30`, `kubeproxy_userspace_connections{protocol="UDP"} 1x30`,
			`kubeproxy_userspace_connections_limit 100x30`,
		}},
		quiet: [][]string{{
			`kubeproxy_userspace_connections{protocol="TCP"} 60x30`, `kubeproxy_userspace_connections{protocol="UDP"} 60x30`,
			`kubeproxy_userspace_connections_limit 100x30`,
		}},
	},
	"SluiceSocketsNotServed": {
		fires: [][]string{{`kubeproxy_ebpf_sockets_served 0x30`}},
		quiet: [][]string{{`kubeproxy_ebpf_sockets_served 1x25 0x5`}},
	},
	"SluiceSocketMapsFull": {
		fires: [][]string{{`kubeproxy_ebpf_rows_left 1x30`}},
		quiet: [][]string{{`kubeproxy_ebpf_rows_left 0x30`}},
	},
}

// TestAlerts wants each alert to fire when it should, and it alone; and not to
// when it should not.
func TestAlerts(t *testing.T) {
	var names []string
	for _, r := range alertsOver(t, newSamples(t, nil)) {
		names = append(names, r.Name())
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, slices.Sorted(maps.Keys(alertCases))); diff != "" {
		t.Fatalf("alerts and their tests (-alerts +tests):\n%s", diff)
	}
	for name, c := range alertCases {
		for want, sets := range map[string][][]string{name: c.fires, "": c.quiet} {
			if len(sets) == 0 {
				t.Errorf("%s: want series under which %q fires", name, want)
			}
			for _, series := range sets {
				if got := strings.Join(fired(t, series), " "); got != want {
					t.Errorf("%s: %q fires, want %q:\n%s", name, got, want, strings.Join(series, "\n"))
				}
			}
		}
	}
}

// newSamples holds series for half an hour, by the minute.
func newSamples(t *testing.T, series []string) *promqltest.LazyLoader {
	t.Helper()
	text := "load 1m\n"
	for _, s := range series {
		name, values, _ := strings.Cut(s, " ")
		name, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if !strings.Contains(labels, "job=") {
			labels += `,job="kube-system/sluice"`
		}
		text += fmt.Sprintf("  %s{%s,instance=\"node-1\"} %s\n", name, strings.Trim(labels, ","), values)
	}
	samples, err := promqltest.NewLazyLoader(text, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = samples.Close() })
	return samples
}

// alertsOver reads the file as Prometheus does, to ask some samples.
func alertsOver(t *testing.T, samples *promqltest.LazyLoader) (all []*rules.AlertingRule) {
	t.Helper()
	groups, errs := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(samples.QueryEngine(), samples.Storage()),
		Context:   t.Context(), Logger: slog.New(slog.DiscardHandler), Parser: parser.NewParser(parser.Options{}),
	}).LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, alertsFile)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups {
		for _, r := range g.Rules() {
			all = append(all, r.(*rules.AlertingRule))
		}
	}
	return all
}

// fired returns the alerts that fired at any time, and checks what they say.
func fired(t *testing.T, series []string) []string {
	t.Helper()
	if !slices.ContainsFunc(series, func(s string) bool { return strings.HasPrefix(s, "up{") }) {
		series = append([]string{`up 1x30`}, series...)
	}
	samples := newSamples(t, series)
	query := rules.EngineQueryFunc(samples.QueryEngine(), samples.Storage())
	names := map[string]bool{}
	for _, r := range alertsOver(t, samples) {
		for minute := range 31 {
			at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
			samples.WithSamplesTill(at, func(err error) {
				if err == nil {
					_, err = r.Eval(t.Context(), 0, at, query, &url.URL{}, 0)
				}
				if err != nil {
					t.Fatalf("%s: %v", r.Name(), err)
				}
			})
			r.ForEachActiveAlert(func(a *rules.Alert) {
				if a.State == rules.StateFiring {
					names[r.Name()] = true
					checkWords(t, a)
				}
			})
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// checkWords wants everything in place that somebody reads who is woken.
func checkWords(t *testing.T, a *rules.Alert) {
	t.Helper()
	for _, name := range []string{"summary", "description", "runbook_url"} {
		text := a.Annotations.Get(name)
		if text == "" || strings.Contains(text, "<no value>") || strings.Contains(text, "error expanding") || strings.Contains(text, "()") {
			t.Errorf("%s: %s is %q", a.Labels.Get(labels.AlertName), name, text)
		}
	}
	if s := a.Labels.Get("severity"); !slices.Contains([]string{"critical", "warning", "info"}, s) {
		t.Errorf("%s: severity %q", a.Labels.Get(labels.AlertName), s)
	}
}

// TestRunbook wants a section for each alert, by its name, with a command to look
// with; and no others.
func TestRunbook(t *testing.T) {
	sections := map[string]string{}
	for _, s := range strings.Split(string(contents(t, runbook)), "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		sections[title] = text
	}
	for _, r := range alertsOver(t, newSamples(t, nil)) {
		text := sections[r.Name()]
		for _, want := range []string{"**Means.**", "**Look.**", "**Do.**", "`sluice "} {
			if !strings.Contains(text, want) {
				t.Errorf("the section %s lacks %s", r.Name(), want)
			}
		}
		delete(sections, r.Name())
		if got, want := r.Annotations().Get("runbook_url"), "docs/runbook.md#"+strings.ToLower(r.Name()); got != want {
			t.Errorf("%s links to %s, want %s", r.Name(), got, want)
		}
	}
	for title := range sections {
		t.Errorf("no alert is called %s", title)
	}
}
