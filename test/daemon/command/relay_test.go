package command

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/daemon/testbed"
)

// nodePortV6 is a Service with NodePorts of IPv6, by TCP and UDP.
const nodePortV6 = `
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  type: NodePort
  clusterIP: "fd00:172:30::60"
  ports: [{name: http, port: 80, nodePort: 30060}, {name: dns, protocol: UDP, port: 53, nodePort: 30061}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: six-1, labels: {kubernetes.io/service-name: six}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: dns, protocol: UDP, port: 8080}]
endpoints: [{addresses: ["fd00:10::11"], nodeName: test-node}]
`

// TestNodePortsAtIPv6Loopback connects to NodePorts at [::1], by every mode that can open
// loopback. They are served only if ::1 is named, and in mode nftables only with the gate; otherwise
// they are refused, as by kube-proxy with the gate.
func TestNodePortsAtIPv6Loopback(t *testing.T) {
	gate := []string{"--feature-gates", "KubeProxyNFTablesLocalhostNodePorts=true"}
	named := []string{"--nodeport-addresses", "localhost"}
	tests := []struct {
		mode   string
		flags  []string
		served bool
		metric string
	}{
		{"nftables", with(gate, named...), true, "kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv6\"} 2\n"},
		{"nftables", named, false, ""},
		{"nftables", gate, false, "kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv6\"} 0\n"},
		{"iptables", named, true, ""},
		{"iptables", nil, false, ""},
		{"iptables", with(named, "--iptables-localhost-nodeports=false"), false, ""},
		{"userspace", named, true, ""},
		{"ebpf", named, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.mode+"/"+strings.Join(tt.flags, " "), func(t *testing.T) {
			if tt.mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			bed := testbed.NewFor(t, tt.mode)
			bed.Listen(proxy.UDP, testbed.PodV6)
			bed.Write("six.yaml", nodePortV6)
			bed.Start(nil, tt.flags...)
			bed.AwaitSync()
			for p, port := range map[proxy.Protocol]uint16{proxy.TCP: 30060, proxy.UDP: 30061} {
				if tt.served {
					testbed.Eventually(t, "an answer by "+p.String(), func() bool { return atLoopback(bed, p, port) == traffic.Answered })
				} else if fate := atLoopback(bed, p, port); fate != traffic.Reset && fate != traffic.Refused {
					t.Errorf("%v at [::1]: %v; want a refusal", p, fate)
				}
			}
			said, code := bed.Sluice("explain", "[::1]:30060")
			if relayed := strings.Contains(said, "relays to one of 1 endpoint"); relayed != tt.served || (code == 0) != tt.served {
				t.Errorf("explain: exit %d, %s", code, said)
			}
			_, metrics, err := bed.Get("http://127.0.0.1:10249/metrics")
			if err != nil || tt.metric == "" == strings.Contains(metrics, "localhost_nodeport_listeners") || !strings.Contains(metrics, tt.metric) {
				t.Errorf("%v, metrics lack %q", err, tt.metric)
			}
		})
	}
}

// atLoopback connects from the node to a port at [::1]. Another server than the pod's is an error.
func atLoopback(bed *testbed.Testbed, p proxy.Protocol, port uint16) traffic.Fate {
	bed.T.Helper()
	seen, err := bed.Lab.Node().Probe(context.Background(), []traffic.Flow{{
		Protocol: p, Src: netip.IPv6Loopback(), Dst: netip.AddrPortFrom(netip.IPv6Loopback(), port), Patience: traffic.Scaled(300 * time.Millisecond),
	}})
	if err != nil {
		bed.T.Fatal(err)
	}
	if seen[0].Fate == traffic.Answered && seen[0].By != netip.AddrPortFrom(testbed.PodV6, 8080) {
		bed.T.Errorf("answered by %v", seen[0].By)
	}
	return seen[0].Fate
}
