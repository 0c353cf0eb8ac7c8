package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestServers asks the health and metrics servers what operators ask.
func TestServers(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil)
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	testbed.Eventually(t, "health", func() bool {
		code, body := bed.Health()
		return code == http.StatusOK && strings.Contains(body, `"nodeEligible":true`)
	})
	for path, want := range map[string]string{
		"/metrics":   `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`,
		"/proxyMode": "nftables",
		"/flagz":     "\nhostname-override=test-node\n",
		"/statusz":   "\nEmulation version: 1.37\n",
		"/healthz":   "ok",
		"/configz":   `"kubeproxy.config.k8s.io"`,
	} {
		code, body, err := bed.Get("http://127.0.0.1:10249" + path)
		if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %v, without %q:\n%.300s", path, code, err, want, body)
		}
	}
	_, body, _ := bed.Get("http://127.0.0.1:10249/metrics")
	if !strings.Contains(body, `sluice_build_info{goversion="go1.`) {
		t.Error("the metrics lack sluice_build_info")
	}
	_, body, _ = bed.Get("http://127.0.0.1:10249/configz")
	var z map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &z); err != nil || z["kubeproxy.config.k8s.io"]["kind"] != "KubeProxyConfiguration" {
		t.Errorf("configz: %v, %.200s", err, body)
	}
	if code, _, _ := bed.Get("http://127.0.0.1:10249/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof answers %d without --profiling", code)
	}
}

// TestNoServers switches both servers off.
func TestNoServers(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil, "--healthz-bind-address", "", "--metrics-bind-address", "")
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	for _, port := range []int{10249, 10256} {
		if code, _, err := bed.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)); err == nil {
			t.Errorf("port %d answers %d", port, code)
		}
	}
}

// TestHealthCheckNodePort answers a load balancer's question, and stops when the
// last local endpoint is gone.
func TestHealthCheckNodePort(t *testing.T) {
	bed := testbed.New(t)
	lb := func(endpoints ...netip.Addr) string {
		return strings.Replace(testbed.Service("web", testbed.ClusterIP, endpoints...), "ports: [{name: http, port: 80}]",
			"type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30100\n  ports: [{name: http, port: 80, nodePort: 30080}]", 1)
	}
	bed.Write("web.yaml", lb(testbed.PodA, testbed.PodB))
	d := bed.Start(nil)
	check := func(code int, local int) func() bool {
		return func() bool {
			got, body, err := bed.Get("http://192.168.0.2:30100/")
			return err == nil && got == code && strings.Contains(body, fmt.Sprintf(`"localEndpoints": %d`, local))
		}
	}
	testbed.Eventually(t, "two endpoints", check(http.StatusOK, 2))
	bed.Write("web.yaml", strings.ReplaceAll(lb(testbed.PodA, testbed.PodB), "test-node", "other-node"))
	testbed.Eventually(t, "no endpoint", check(http.StatusServiceUnavailable, 0))
	d.End(syscall.SIGTERM)
}
