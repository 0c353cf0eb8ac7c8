package cluster

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestGivesWay stops the daemon and starts kube-proxy in its place, in another
// mode on each node. While nobody is there a Service gets another endpoint, and
// one loses its only one. Nobody takes the daemon's rules away, and there were
// rules of iptables before them, which then run after them.
func TestGivesWay(t *testing.T) {
	old := legacyPrograms(t)
	turns := []turn{kubeProxyIPTables(), kubeProxyNFTables(), kubeProxyIPTables().legacy(old)}
	s := newBareScene(t)
	s.wipeAfter()
	pods := s.pods("web")
	onNodePort := func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort }
	web, gone := s.service("web", onNodePort), s.service("gone", onNodePort)
	s.publish(web, ready(pods[0])...)
	s.publish(gone, ready(pods[0])...)
	for i, n := range bed.Nodes {
		for _, program := range []string{"iptables", "ip6tables"} {
			for _, chain := range []string{"PREROUTING", "OUTPUT"} {
				onHost(t, n, "env", append(turns[i].proxy.Env, program, "-t", "nat", "-A", chain, "-m", "comment", "--comment", "older")...)
			}
		}
		s.proxies = append(s.proxies, s.startProxy(n, sluiceNFTables().proxy))
	}
	expect := func(ofWeb, ofGone string) {
		t.Helper()
		for i, n := range bed.Nodes {
			for family := range web.Spec.ClusterIPs {
				s.expect(
					probe{s.clients[i], clusterIPs(web)[family], ofWeb}, probe{s.clients[i], clusterIPs(gone)[family], ofGone},
					probe{outside(n), nodePorts(n, web)[family], ofWeb}, probe{outside(n), nodePorts(n, gone)[family], ofGone})
			}
		}
	}
	expect("web-1", "web-1")
	for _, p := range s.proxies {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	expect("web-1", "web-1")
	s.publish(web, ready(pods[1])...)
	s.publish(gone)
	for i, n := range bed.Nodes {
		s.startProxy(n, turns[i].proxy)
	}
	expect("web-2", "refused")
}
