package foreign

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/daemon/testbed"
)

// beside runs a daemon in each mode beside another program, which begins before the daemon or after
// it. Neither may touch what is the other's, also not when the daemon starts again.
func beside(t *testing.T, begin func(*testbed.Testbed, string), works func(*testbed.Testbed)) {
	for _, mode := range append([]string{testbed.Legacy}, testbed.Modes...) {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%t", mode, first), func(t *testing.T) {
				if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
					t.Parallel()
				}
				bed := testbed.NewFor(t, mode)
				if first {
					begin(bed, mode)
				}
				d := bed.Start(nil)
				bed.AwaitSync()
				logged := awaitFirstSyncLogged(bed, d)
				if !first {
					begin(bed, mode)
				}
				theirs := otherRules(bed)
				works(bed)
				bed.AwaitFreshRules(mode)
				testbed.Pause(t, 500*time.Millisecond) // in which all is looked at again
				if seen := foreignLine.FindAllString(d.Log()[logged:], -1); len(seen) > 0 || fullSync.MatchString(d.Log()[logged:]) {
					t.Errorf("rules are repaired that nobody changed: %q", seen)
				}
				d.End(syscall.SIGTERM)
				d = bed.Start(nil)
				bed.AwaitSync()
				works(bed)
				d.End(syscall.SIGKILL)
				if now := otherRules(bed); now != theirs {
					t.Errorf("what is others' was\n%s\nand is\n%s", theirs, now)
				}
			})
		}
	}
}

// asks is a connection, and what becomes of it.
type asks struct {
	by     proxy.Protocol
	from   *lab.Host
	src    netip.Addr
	dst    string
	fate   traffic.Fate
	answer netip.Addr // who answers
	client netip.Addr // whom it sees; invalid: anybody
}

// expect makes connections until each has the fate that it should have.
func expect(bed *testbed.Testbed, all ...asks) {
	bed.T.Helper()
	for _, a := range all {
		var seen traffic.Seen
		if !testbed.Within(5*time.Second, func() bool {
			got, err := a.from.Probe(context.Background(), []traffic.Flow{{
				Protocol: a.by, Src: a.src, Dst: netip.MustParseAddrPort(a.dst), Patience: traffic.Scaled(300 * time.Millisecond),
			}})
			if err != nil {
				bed.T.Fatal(err)
			}
			seen = got[0]
			return seen.Fate == a.fate && seen.By.Addr() == a.answer && (!a.client.IsValid() || seen.Client == a.client)
		}) {
			bed.T.Errorf("%v from %v to %s: %+v; want %v by %v, who sees %v", a.by, a.src, a.dst, seen, a.fate, a.answer, a.client)
		}
	}
}

var (
	outsider = netip.MustParseAddr("203.0.113.9")
	nodeIP   = netip.MustParseAddr("192.168.0.2")
)

// nodePort is a Service with a NodePort, and pod A.
func nodePort(bed *testbed.Testbed) {
	bed.Write("web.yaml", strings.NewReplacer("spec:\n  clusterIP", "spec:\n  type: NodePort\n  clusterIP", "port: 80}", "port: 80, nodePort: 30080}").
		Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodA)))
}

// TestBesidePortmap has host ports of the CNI plugin portmap 1.9, by its backend for nftables. One
// is the port of a Service, whose connections stay its own.
func TestBesidePortmap(t *testing.T) {
	const rules = `
table ip cni_hostport {
	comment "CNI portmap plugin"
	chain hostports {
		tcp dport 8088 dnat to 10.0.0.12:8080 comment "4f1c"
		tcp dport 80 dnat to 10.0.0.12:8080 comment "4f1c"
	}
	chain hostip_hostports { }
	chain hostports_all {
		jump hostip_hostports
		jump hostports
	}
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local jump hostports_all
	}
	chain output {
		type nat hook output priority -100; policy accept;
		fib daddr type local jump hostports_all
	}
	chain masquerading {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.0.0.12 ip daddr 10.0.0.12 masquerade comment "4f1c"
		ip saddr 127.0.0.1 ip daddr 10.0.0.12 masquerade comment "4f1c"
	}
}
`
	beside(t, func(bed *testbed.Testbed, _ string) {
		nodePort(bed)
		bed.Run("nft", rules)
	}, func(bed *testbed.Testbed) {
		out, node := bed.Lab.Outside(), bed.Lab.Node()
		expect(
			bed,
			asks{proxy.TCP, bed.Client, testbed.ClientIP, testbed.ClusterIP.String(), traffic.Answered, testbed.PodA, testbed.ClientIP},
			asks{proxy.TCP, node, nodeIP, testbed.ClusterIP.String(), traffic.Answered, testbed.PodA, netip.Addr{}},
			asks{proxy.TCP, out, outsider, "192.168.0.2:30080", traffic.Answered, testbed.PodA, netip.Addr{}},
			asks{proxy.TCP, out, outsider, "192.168.0.2:8088", traffic.Answered, testbed.PodB, outsider},
			asks{proxy.TCP, out, outsider, "192.168.0.2:80", traffic.Answered, testbed.PodB, outsider},
			asks{proxy.TCP, node, nodeIP, "192.168.0.2:8088", traffic.Answered, testbed.PodB, netip.Addr{}},
			asks{proxy.TCP, bed.Pods[testbed.PodB], testbed.PodB, "192.168.0.2:8088", traffic.Answered, testbed.PodB, netip.Addr{}},
		)
	})
}

// TestBesideMetalLB sends to load-balancer addresses as MetalLB does: its speaker has the packets of
// an address come to a node, on which no link has it, and the Service has no NodePort. With policy
// Cluster the node need not have an endpoint; with policy Local one without drops.
func TestBesideMetalLB(t *testing.T) {
	remote := netip.MustParseAddr("10.1.0.10")
	service := func(name, vip, lb, policy string, ready netip.Addr, on string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  clusterIP: %s
  externalTrafficPolicy: %s
%s  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%[6]s], nodeName: %[7]s}]
`, name, vip, policy, map[string]string{"Local": "  healthCheckNodePort: 309" + strings.TrimPrefix(lb, "198.51.100.") + "\n"}[policy], lb, ready, on)
	}
	beside(t, func(bed *testbed.Testbed, _ string) {
		if bed.Pods[remote] == nil {
			h, err := bed.Lab.AddRemotePod("remote", remote)
			if err != nil {
				bed.T.Fatal(err)
			}
			bed.Pods[remote] = h
			bed.Listen(proxy.TCP, remote)
		}
		bed.Write("cluster.yaml", service("cluster", "172.30.0.41", "198.51.100.41", "Cluster", remote, "other-node"))
		bed.Write("here.yaml", service("here", "172.30.0.42", "198.51.100.42", "Local", testbed.PodA, "test-node"))
		bed.Write("there.yaml", service("there", "172.30.0.43", "198.51.100.43", "Local", remote, "other-node"))
	}, func(bed *testbed.Testbed) {
		out := bed.Lab.Outside()
		expect(
			bed,
			asks{proxy.TCP, out, outsider, "198.51.100.41:80", traffic.Answered, remote, netip.MustParseAddr("100.64.0.1")},
			asks{proxy.TCP, out, outsider, "198.51.100.42:80", traffic.Answered, testbed.PodA, outsider},
			asks{proxy.TCP, out, outsider, "198.51.100.43:80", traffic.Silent, netip.Addr{}, netip.Addr{}},
			asks{proxy.TCP, bed.Client, testbed.ClientIP, "198.51.100.43:80", traffic.Answered, remote, netip.Addr{}},
			asks{proxy.TCP, bed.Lab.Node(), nodeIP, "198.51.100.43:80", traffic.Answered, remote, netip.Addr{}},
		)
		for port, want := range map[string]int{"30942": 200, "30943": 503} {
			testbed.Eventually(bed.T, "the health of port "+port, func() bool {
				code, _, err := bed.Get("http://192.168.0.2:" + port)
				return err == nil && code == want
			})
		}
		if addrs := bed.Run("ip", "-o", "addr", "show", "scope", "global"); strings.Contains(addrs, "198.51.100.") && !slices.Contains(bed.Flags, "ipvs") {
			bed.T.Errorf("the node took load-balancer addresses, which the speaker alone may answer for: %s", addrs)
		}
	})
}
