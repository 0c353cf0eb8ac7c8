package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/ruleset"
)

// kubelet makes the chain that the kubelet has on every node, and kube-proxy
// would make if it came first.
const kubelet = `set -e
for program in iptables ip6tables; do
	$program -N KUBE-FIREWALL
	$program -A INPUT -j KUBE-FIREWALL
	$program -A OUTPUT -j KUBE-FIREWALL
done
iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" \
	-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
`

// TestCleanUpAfterKubeProxy runs the real kube-proxy, in another mode on each
// node, takes all away that it left, and finds the nodes as they were.
func TestCleanUpAfterKubeProxy(t *testing.T) {
	s := newBareScene(t)
	s.wipeAfter()
	pods := s.pods("web")
	legacy := legacyPrograms(t)
	turns := []turn{kubeProxyIPTables(), kubeProxyNFTables(), kubeProxyIPTables().legacy(legacy)}
	var before []string
	for i, n := range bed.Nodes {
		onHost(t, n, "sh", "-c", wipe)
		path := ""
		if i == 2 {
			path = "PATH=" + legacy + ":$PATH\n"
		}
		onHost(t, n, "sh", "-c", path+kubelet)
		before = append(before, s.ruleset(i))
		s.proxies = append(s.proxies, s.startProxy(n, turns[i].proxy))
	}
	svc := s.service("web", balanced, func(svc *v1.Service) { svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	s.giveVIPs(svc, balancerIPv4, balancerIPv6)
	s.publish(svc, ready(pods[0])...)
	s.expectEverywhere("web-1", clusterIPs(svc)...)
	for i, n := range bed.Nodes {
		s.proxies[i].Kill()
		if s.ruleset(i) == before[i] {
			t.Errorf("%s left nothing to clean up", turns[i].name)
		}
		if err := bed.CleanUp(n); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before[i], s.ruleset(i)); diff != "" {
			t.Errorf("%s is not as it was before %s (-before +after):\n%s", n.Name, turns[i].name, diff)
		}
	}
}

// ruleset returns what a node does with packets.
func (s *scene) ruleset(node int) string {
	s.Helper()
	text, err := ruleset.Of(bed.Nodes[node].Host)
	if err != nil {
		s.Fatal(err)
	}
	return text
}
