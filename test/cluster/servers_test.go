package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/testbed"
)

// get sends a request to a server on a node, from the node itself.
func get(n *testbed.Node, url string) (int, string, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return n.Host.Dial(ctx, proxy.TCP, netip.Addr{}, netip.MustParseAddrPort(addr))
		},
	}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// health is what a node's health server says, in short.
func health(n *testbed.Node, path string) func() string {
	return func() string {
		code, _, err := get(n, "http://127.0.0.1:10256"+path)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(code)
	}
}

// inForce waits until everything that the proxies of some nodes know is in force.
func (s *scene) inForce(nodes ...*testbed.Node) {
	s.Helper()
	for _, n := range nodes {
		if err := bed.WaitInForce(n); err != nil {
			s.Fatalf("%s: %v", n.Name, err)
		}
	}
}

// changeNode updates a Node object.
func (s *scene) changeNode(n *testbed.Node, change func(*v1.Node)) {
	s.Helper()
	nodes := bed.Client.CoreV1().Nodes()
	node, err := nodes.Get(s.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	change(node)
	if _, err := nodes.Update(s.Context(), node, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// TestHealth is green when the kernel is right, and tells load balancers when
// the node is to be emptied.
func TestHealth(t *testing.T) {
	s := newScene(t)
	node := bed.Nodes[0]
	s.await("health", "200", health(node, "/healthz"))
	taint := v1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: v1.TaintEffectNoSchedule}
	s.changeNode(node, func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) })
	s.await("health of a node that is to go", "503", health(node, "/healthz"))
	s.await("its life", "200", health(node, "/livez"))
	s.changeNode(node, func(n *v1.Node) { n.Spec.Taints = nil })
	s.await("health of a node that stays", "200", health(node, "/healthz"))
}

// TestUnhealthyWithoutRole is never green while nothing can be read.
func TestUnhealthyWithoutRole(t *testing.T) {
	s := newBareScene(t)
	node := bed.Nodes[0]
	files, err := bed.NewUser(pki.Identity{Name: "sluice:nobody-healthy"})
	if err != nil {
		t.Fatal(err)
	}
	p := s.startProxy(node, testbed.Proxy{User: files})
	s.awaitLog(p, "forbidden", "services")
	for _, path := range []string{"/healthz", "/livez"} {
		s.await(path, "503", health(node, path))
	}
}

// metric returns the value of one line of a node's metrics.
func metric(n *testbed.Node, line string) string {
	_, body, err := get(n, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return err.Error()
	}
	for l := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(l, line); ok {
			return strings.TrimSpace(value)
		}
	}
	return "no such line"
}

// TestMetrics finds true values: how many changes took how long from the
// controller's trigger to the kernel, and what waits.
func TestMetrics(t *testing.T) {
	s := newScene(t)
	node := bed.Nodes[0]
	svc := s.service("web")
	pods := s.pods("web")
	s.inForce(node)    // triggers of before the start do not count
	for i := range 3 { // every time the slice names a new trigger
		s.publish(svc, ready(pods[i])...)
		s.expectEverywhere(fmt.Sprintf("web-%d", i+1), clusterIPs(svc)...)
	}
	for line, want := range map[string]string{
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} `:                          "3",
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"} `:                          "3",
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="5"} `:                  "3",
		`kubeproxy_sync_proxy_rules_endpoint_changes_pending `:                                             "0",
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} `: "0",
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} `:                        "1",
	} {
		s.await("metric "+line, want, func() string { return metric(node, line) })
	}
	for _, line := range []string{"rest_client_requests_total{", "kubernetes_build_info{", "process_resident_memory_bytes "} {
		if got := metric(node, line); got == "no such line" {
			t.Errorf("no metric %s", line)
		}
	}
}

// TestEvents finds the birth of a proxy among the cluster's events.
func TestEvents(t *testing.T) {
	began := time.Now()
	s := newScene(t)
	node := bed.Nodes[0]
	s.inForce(bed.Nodes...)
	s.await("the event", "Starting kube-proxy", func() string {
		list, err := bed.Client.EventsV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if e.Regarding.Kind == "Node" && e.Regarding.Name == node.Name && e.Reason == "Starting" && e.EventTime.After(began) {
				return e.Reason + " " + e.ReportingController
			}
		}
		return fmt.Sprintf("%d other events", len(list.Items))
	})
}

// inZones returns pods that each have a zone of their own.
func inZones(pods []*testbed.Pod) []testbed.Member {
	members := ready(pods...)
	for i := range members {
		members[i].Zone = fmt.Sprintf("zone-%d", i+1)
	}
	return members
}

// TestNodeChanges takes a new zone over without a restart.
func TestNodeChanges(t *testing.T) {
	s := newScene(t)
	node := bed.Nodes[0]
	svc := s.service("web")
	pods := s.pods("web")
	s.publish(svc, inZones(pods)...)
	s.expectEverywhere("web-1 web-2 web-3", clusterIPs(svc)...)
	s.changeNode(node, func(n *v1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, v1.LabelTopologyZone, "zone-2") })
	t.Cleanup(func() {
		n, err := bed.Client.CoreV1().Nodes().Get(context.Background(), node.Name, metav1.GetOptions{})
		if err == nil {
			delete(n.Labels, v1.LabelTopologyZone)
			_, err = bed.Client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	})
	for _, to := range clusterIPs(svc) {
		s.expect(probe{from: s.clients[0], to: to, want: "web-2"})
	}
}
