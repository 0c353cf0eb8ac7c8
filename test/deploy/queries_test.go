package deploy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// noFolder has a daemon ask an API server.
const noFolder = "--manifests="

const dashboardFile = root + "/deploy/grafana/sluice.json"

// byPrometheus are series that Prometheus itself adds, and the labels of a target.
var byPrometheus = []string{"up", "ALERTS", "__name__", "job", "instance"}

// TestQueriesFindSomething runs daemons of all kinds, lets happen what is counted,
// and looks for each metric and label of each query among what they tell.
func TestQueriesFindSomething(t *testing.T) {
	lab.Require(t)
	told := exposition{}
	for _, d := range []struct {
		flags []string
		until []string // what it tells by then
	}{
		{[]string{"--proxy-mode=nftables", "--service-traffic=bytes"}, []string{
			"kubeproxy_nftables_affinity_clients", "sluice_service_bytes_total", "sluice_service_refused_packets_total",
		}},
		{[]string{"--proxy-mode=iptables"}, []string{"kubeproxy_sync_proxy_rules_iptables_total"}},
		{[]string{"--proxy-mode=userspace"}, []string{"kubeproxy_userspace_connections"}},
		{[]string{"--proxy-mode=ebpf"}, []string{"kubeproxy_ebpf_translated_total"}},
		{[]string{noFolder, "--master=http://127.0.0.1:1"}, []string{"rest_client_requests_total"}},
	} {
		t.Run(d.flags[0], func(t *testing.T) { told.scrape(t, d.flags, d.until) })
	}
	for query, selectors := range queries(t) {
		for _, s := range selectors {
			labels, ok := told[s.Name]
			if !ok && !slices.Contains(byPrometheus, s.Name) {
				t.Errorf("no daemon tells %s:\n%s", s.Name, query)
			}
			for _, m := range s.LabelMatchers {
				if ok && !slices.Contains(byPrometheus, m.Name) && !labels[m.Name] {
					t.Errorf("%s has no label %s:\n%s", s.Name, m.Name, query)
				}
			}
		}
	}
}

// queries returns what every query of alerts and dashboard selects.
func queries(t *testing.T) map[string][]*parser.VectorSelector {
	t.Helper()
	var texts []string
	for _, r := range alertsOver(t, newSamples(t, nil)) {
		texts = append(texts, r.Query().String())
	}
	out := map[string][]*parser.VectorSelector{}
	for _, text := range append(texts, dashboardQueries(t)...) {
		e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Errorf("%v:\n%s", err, text)
			continue
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok {
				out[text] = append(out[text], s)
			}
			return nil
		})
	}
	return out
}

// dashboardQueries returns the queries of all panels and variables, as Grafana
// would send them.
func dashboardQueries(t *testing.T) (all []string) {
	t.Helper()
	var dashboard struct {
		Templating struct {
			List []struct{ Definition string }
		}
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(contents(t, dashboardFile), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, v := range dashboard.Templating.List {
		if q, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			all = append(all, q[:strings.LastIndex(q, ",")])
		}
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, to := range p.Targets {
			all = append(all, to.Expr)
		}
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	for i := range all {
		if all[i] = variables.Replace(all[i]); strings.Contains(all[i], "$") {
			t.Errorf("there is no such variable: %s", all[i])
		}
	}
	return all
}

// counted is a Service whose slice names what brought it about, and one without
// endpoints.
const counted = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 172.30.0.10, ports: [{name: http, port: 80}, {name: dns, protocol: UDP, port: 53}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: %s}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, protocol: UDP, port: 53}]
endpoints: [{addresses: [10.0.0.11], nodeName: node-1}]
---
apiVersion: v1
kind: Service
metadata: {name: idle}
spec: {clusterIP: 172.30.0.11, ports: [{port: 80}]}
`

// exposition is all metrics that daemons tell, each with its labels.
type exposition map[string]map[string]bool

// scrape runs a daemon until it tells some metrics, and adds all that it tells.
func (e exposition) scrape(t *testing.T, flags, until []string) {
	p := &process{}
	places := p.addSockets(t)
	l, err := lab.New(lab.Config{Cgroup: places[0]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	send := clientOf(t, l)
	folder := t.TempDir()
	p.start(t, l.Node(), image(t), append([]string{
		"--manifests=" + folder, "--hostname-override=node-1", "--cgroup-root=" + places[0], "--bpf-root=" + places[1], "--status-socket=",
	}, flags...)...)
	var text string
	tells := func(metrics ...string) func() bool {
		return func() bool {
			send()
			for _, path := range []string{"/livez", "/healthz"} { // their answers are counted
				fetch(t, l.Node(), netip.MustParseAddrPort("127.0.0.1:10256"), path)
			}
			text, _ = fetch(t, l.Node(), netip.MustParseAddrPort("127.0.0.1:10249"), "/metrics")
			return !slices.ContainsFunc(metrics, func(m string) bool { return !regexp.MustCompile(`(?m)^` + m + `\b`).MatchString(text) })
		}
	}
	p.await(t, tells("kubeproxy_proxy_livez_total"))
	if flags[0] != noFolder {
		// What caused the change is measured only if it is younger than the daemon.
		manifest := fmt.Appendf(nil, counted, time.Now().Format(time.RFC3339Nano))
		if err := os.WriteFile(filepath.Join(folder, "web.yaml"), manifest, 0o600); err != nil {
			t.Fatal(err)
		}
		p.await(t, tells("kubeproxy_network_programming_duration_seconds_count"))
	}
	p.await(t, tells(until...))
	e.add(text)
}

// clientOf returns what sends from a pod to both Services, for one of which a pod
// answers.
func clientOf(t *testing.T, l *lab.Lab) (send func()) {
	t.Helper()
	server, err := l.AddPod("server", netip.MustParseAddr("10.0.0.11"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.AddPod("client", netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen(proxy.TCP, netip.MustParseAddrPort("10.0.0.11:8080"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var flows []traffic.Flow
	for _, to := range []string{"172.30.0.10:80", "172.30.0.11:80"} {
		flows = append(flows, traffic.Flow{
			Protocol: proxy.TCP, Src: client.Addrs[0], Dst: netip.MustParseAddrPort(to), Patience: 100 * time.Millisecond,
		})
	}
	return func() {
		if _, err := client.Probe(t.Context(), flows); err != nil {
			t.Fatal(err)
		}
	}
}

var sample = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? \S+$`)

// add takes what a daemon told.
func (e exposition) add(text string) {
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		if e[m[1]] == nil {
			e[m[1]] = map[string]bool{}
		}
		for label := range strings.SplitSeq(m[2], `",`) {
			name, _, _ := strings.Cut(label, "=")
			e[m[1]][name] = true
		}
	}
}
