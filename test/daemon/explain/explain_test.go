package explain

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/traffic"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// reasons are manifests in which everything that can be said of a packet by
// policy comes up.
const reasons = `
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16]}}
---
{apiVersion: v1, kind: Service, metadata: {name: idle}, spec: {clusterIP: 172.30.0.20, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: waiting}, spec: {clusterIP: 172.30.0.21, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: waiting-1, labels: {kubernetes.io/service-name: waiting}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.12], nodeName: test-node, conditions: {ready: false}}]
---
{apiVersion: v1, kind: Service, metadata: {name: far}, spec: {clusterIP: 172.30.0.22, internalTrafficPolicy: Local, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.9.12], nodeName: other}]
---
{apiVersion: v1, kind: Service, metadata: {name: named}, spec: {clusterIP: 172.30.0.23, ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: named-1, labels: {kubernetes.io/service-name: named}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: [10.0.0.12], nodeName: test-node}]
---
apiVersion: v1
kind: Service
metadata: {name: guarded}
spec: {type: LoadBalancer, clusterIP: 172.30.0.24, loadBalancerSourceRanges: [192.0.2.0/24], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 1.2.3.4}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: young, creationTimestamp: "2024-01-01T00:00:00Z"}, spec: {clusterIP: 172.30.0.10, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: aside, labels: {service.kubernetes.io/service-proxy-name: another}}, spec: {clusterIP: 172.30.0.25, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: bare}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: door}, spec: {type: NodePort, clusterIP: 172.30.0.26, ports: [{name: http, port: 80, nodePort: 30080}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: door-1, labels: {kubernetes.io/service-name: door}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.12], nodeName: test-node}]
---
{apiVersion: v1, kind: Service, metadata: {name: dead}, spec: {clusterIP: 172.30.0.27, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dead-1, labels: {kubernetes.io/service-name: dead}}
addressType: IPv4
ports: [{port: 9}]
endpoints: [{addresses: [10.0.0.12], nodeName: test-node}]
`

// TestExplainIsWhatPacketsDo asks the running daemon of each mode about packets, and sends the same
// packets.
func TestExplainIsWhatPacketsDo(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Flags[3] = "192.168.0.0/24" // takes NodePorts
			bed.Write("web.yaml", strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodA), "{name: web}", `{name: web, creationTimestamp: "2023-01-01T00:00:00Z"}`, 1))
			bed.Write("reasons.yaml", reasons)
			bed.Start(nil)
			bed.AwaitSync()
			for _, tt := range []struct {
				to     string
				reason statusapi.Reason
			}{
				{"default/web", statusapi.Forwarded},
				{"172.30.0.10:80", statusapi.Forwarded},
				{"192.168.0.2:30080", statusapi.Forwarded},
				{"10.0.0.1:30080", statusapi.NodePortClosedHere},
				{"default/idle", statusapi.NoEndpoints},
				{"default/waiting", statusapi.NotReady},
				{"default/far", statusapi.NoLocalEndpoint},
				{"default/named:80", statusapi.PortNameMismatch},
				{"1.2.3.4:80", statusapi.SourceRange},
				{"1.2.3.4:81", statusapi.NoSuchFrontend},
				{"172.30.0.10:81", statusapi.PortNotOfService},
				{"172.30.0.99:80", statusapi.UnallocatedAddress},
				{"172.30.0.25:80", statusapi.OtherProxy},
				{"default/young", statusapi.LostClaim},
			} {
				wantExplained(bed, tt.to, tt.reason)
			}
			for to, reason := range map[string]statusapi.Reason{"default/aside": statusapi.OtherProxy, "default/bare": statusapi.Headless} {
				if text, code := bed.Sluice("explain", to); code != 1 || !strings.Contains(text, string(reason)) {
					t.Errorf("%s: exit %d, want %s: %s", to, code, reason, text)
				}
			}
			if by, fate := bed.Ask(testbed.ClientIP, netip.AddrPortFrom(testbed.PodB, 8080)); fate != traffic.Answered || by != testbed.PodB {
				t.Errorf("a pod, as DNS has the headless Service: %v by %v", fate, by)
			}
			if text, code := bed.Sluice("explain", "default/nothing"); code != 2 || !strings.Contains(text, "no Service default/nothing") {
				t.Errorf("nobody's: exit %d, %s", code, text)
			}
			text, code := bed.Sluice("explain", "default/web", "--connect")
			if code != 0 || !strings.Contains(text, "Connect    answered by 10.0.0.11:8080 after ") {
				t.Errorf("--connect: exit %d\n%s", code, text)
			}
			if text, code = bed.Sluice("explain", "default/dead", "--connect"); mode != "userspace" && code != 1 { // It accepts before it asks the endpoint.
				t.Errorf("--connect to a closed port: exit %d\n%s", code, text)
			}
			known := mode != "ebpf" && mode != "ipvs"
			testbed.Eventually(t, "the failure, if it can be known", func() bool {
				text, _ := bed.Sluice("status", "default/dead", "-o", "json")
				return strings.Contains(text, `"failedConnections": `) == known && !strings.Contains(text, `"failedConnections": 0`)
			})
			if mode != "nftables" && mode != "iptables" {
				return
			}
			err := bed.Pods[testbed.PodB].Do(func() error {
				return exec.Command("nft", `table inet silent { chain in { type filter hook input priority 0; tcp dport 9 drop; }; }`).Run()
			})
			if err != nil {
				t.Fatal(err)
			}
			if text, code = bed.Sluice("explain", "default/dead", "--connect"); code != 1 || !strings.Contains(strings.Join(strings.Fields(text), " "), "i/o timeout; it was sent to 10.0.0.12:9") {
				t.Errorf("--connect to an endpoint that is silent: exit %d\n%s", code, text)
			}
		})
	}
}
