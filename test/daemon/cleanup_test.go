package daemon

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/ruleset"
)

// theirs makes rules, sets and links of others, some of them with names like
// ours: those of the kubelet and of network policy controllers.
const theirs = `set -e
for variant in nft legacy; do
	for program in iptables-$variant ip6tables-$variant; do
		for table in mangle nat filter; do
			$program -t $table -N KUBE-KUBELET-CANARY
		done
		$program -N KUBE-FIREWALL
		$program -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
		$program -A INPUT -j KUBE-FIREWALL
		$program -A OUTPUT -j KUBE-FIREWALL
		$program -N KUBE-ROUTER-FORWARD
		$program -A KUBE-ROUTER-FORWARD -p tcp --dport 9999 -m comment --comment "their own" -j REJECT
		$program -A FORWARD -j KUBE-ROUTER-FORWARD
		$program -t nat -N CNI-HOSTPORT-DNAT
		$program -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
		$program -t nat -A POSTROUTING -p udp --dport 9999 -j MASQUERADE
		$program -t raw -A PREROUTING -p udp --dport 9998 -j ACCEPT
	done
done
for program in iptables ip6tables; do
	$program-$HINT -t mangle -N KUBE-IPTABLES-HINT
done
nft -f - <<END
table ip kube-router {
	set clients { type ipv4_addr; elements = { 192.0.2.1 } }
	chain input { type filter hook input priority 5; policy accept; ip saddr @clients counter drop; }
}
table inet theirs {
	chain empty { type filter hook input priority 6; policy accept; }
}
END
ipset create KUBE-SRC-ABCDEFGHIJKLMNOP hash:net
ipset add KUBE-SRC-ABCDEFGHIJKLMNOP 192.0.2.0/24
ip link add theirs0 type bridge
ip address add 192.0.2.7/32 dev theirs0
`

// kinds is a Service that has all kinds of addresses and rules, and one without
// an endpoint.
const kinds = `
apiVersion: v1
kind: Service
metadata: {name: kinds}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.30
  clusterIPs: [172.30.0.30]
  ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, protocol: UDP, port: 53, nodePort: 30053}]
  sessionAffinity: ClientIP
  externalIPs: [198.51.100.7]
  externalTrafficPolicy: Local
  healthCheckNodePort: 30900
  loadBalancerSourceRanges: [203.0.113.0/24]
status: {loadBalancer: {ingress: [{ip: 198.51.100.8}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kinds-1, labels: {kubernetes.io/service-name: kinds}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, protocol: UDP, port: 8053}]
endpoints:
- {addresses: [10.0.0.11], nodeName: test-node}
- {addresses: [10.0.0.12], nodeName: other-node}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {type: NodePort, clusterIP: 172.30.0.31, ports: [{port: 80, nodePort: 30081}]}
`

// TestCleanup runs the daemon in its modes, cleans up, and checks that the host is as it was before
// the first start.
func TestCleanup(t *testing.T) {
	for _, c := range []struct {
		name  string
		hint  string // the variant that the kubelet uses; empty: there is nobody else
		modes []string
	}{
		{"nftables on an empty host", "", []string{"nftables"}},
		{"iptables on an empty host", "", []string{"iptables"}},
		{"nftables", "nft", []string{"nftables"}},
		{"iptables, variant nft", "nft", []string{"iptables"}},
		{"iptables, variant legacy", "legacy", []string{"iptables"}},
		{"ebpf", "nft", []string{"ebpf"}},
		{"one mode after the other, with ebpf", "nft", []string{"ebpf", "iptables", "ebpf", "nftables"}},
		{"one mode after the other, variant nft", "nft", []string{"nftables", "iptables", "nftables"}},
		{"one mode after the other, variant legacy", "legacy", []string{"iptables", "nftables", "iptables"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			if c.hint != "" {
				s.run("sh", "-c", strings.ReplaceAll(theirs, "$HINT", c.hint))
			}
			places, pinned := sockets(t, c.modes)
			before := s.ruleset()
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("six.yaml", service("six", clusterV6, podV6))
			s.write("kinds.yaml", kinds)
			for i, mode := range c.modes {
				d := s.start(nil, append(places, "--proxy-mode", mode)...)
				eventually(t, "the first sync", func() bool { return strings.Contains(d.log(), "First sync done") })
				eventually(t, "the IPv4 Service", s.answers(clusterIP, podA))
				eventually(t, "the IPv6 Service", s.answers(clusterV6, podV6))
				if c.hint != "" && mode == "iptables" && !strings.Contains(d.log(), `variant="`+c.hint+`"`) {
					t.Errorf("the daemon does not use the variant %s", c.hint)
				}
				if mode == "ebpf" && len(pinned()) == 0 {
					t.Error("there are no programs")
				}
				d.end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
			}
			if s.ruleset() == before {
				t.Fatal("the daemon has left nothing to clean up")
			}
			for range 2 { // the second time there is nothing to do
				if code := s.start(nil, append(places, "--cleanup")...).wait(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				if diff := cmp.Diff(before, s.ruleset()); diff != "" {
					t.Errorf("the host is not as it was (-before +after):\n%s", diff)
				}
				if left := pinned(); len(left) > 0 {
					t.Errorf("programs and maps are left: %v", left)
				}
			}
		})
	}
}

// sockets returns where mode ebpf is to meet the host, if it is among some modes, and
// what is pinned there.
func sockets(t *testing.T, modes []string) (flags []string, pinned func() []string) {
	t.Helper()
	if !slices.Contains(modes, "ebpf") {
		return nil, func() []string { return nil }
	}
	cgroup, bpf := bpfPlaces(t)
	return []string{"--cgroup-root", cgroup, "--bpf-root", filepath.Join(bpf, "sluice")}, func() []string {
		all, err := filepath.Glob(filepath.Join(bpf, "sluice*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// ruleset returns what the node does with packets.
func (s *site) ruleset() string {
	s.t.Helper()
	text, err := ruleset.Of(s.lab.Node())
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// run runs a program on the node.
func (s *site) run(name string, args ...string) {
	s.t.Helper()
	var out []byte
	if err := s.lab.Node().Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	}); err != nil {
		s.t.Fatalf("run %s: %v\n%s", name, err, out)
	}
}
