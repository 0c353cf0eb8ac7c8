package cluster

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// modeLeftOpen is a proxy whose configuration names no mode, as kubeadm up to
// 1.36 writes it; modeIPTables one that names what kubeadm writes since.
func modeLeftOpen(kubeProxy bool) testbed.Proxy {
	return testbed.Proxy{KubeProxy: kubeProxy, Args: []string{"--proxy-mode="}}
}

func modeIPTables(kubeProxy bool) testbed.Proxy {
	return testbed.Proxy{KubeProxy: kubeProxy, Mode: testbed.IPTables}
}

// vip is an address that a node has beside its own, as keepalived gives it.
var vip = netip.MustParseAddr("198.51.100.77")

// TestExchangedImage puts the daemon in the place of kube-proxy with nothing but
// the program changed. Whoever was answered before is answered after: by
// NodePorts on the node's own address, on another and on loopback, and through
// a chain FORWARD that drops what no rule accepts.
func TestExchangedImage(t *testing.T) {
	nodes := []struct {
		proxy  func(kubeProxy bool) testbed.Proxy
		policy string // of chain FORWARD
		mode   string // what becomes of it
		traces string
	}{
		{modeLeftOpen, "ACCEPT", "nftables", "table sluice"},
		{modeLeftOpen, "DROP", "iptables", "iptables-nft"},
		{modeIPTables, "DROP", "iptables", "iptables-nft"},
	}
	s := newBareScene(t)
	s.wipeAfter()
	far := s.pod(bed.Nodes[0], "far")
	for i, n := range bed.Nodes {
		if err := n.Host.Bind(vip); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Host.Unbind(vip); err != nil {
				t.Error(err)
			}
		})
		onHost(t, n, "iptables", "-P", "FORWARD", nodes[i].policy)
		s.proxies = append(s.proxies, s.startProxy(n, nodes[i].proxy(true)))
	}
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(svc, ready(far)...)
	s.expectNodePorts(svc)
	for i, n := range bed.Nodes {
		if err := s.proxies[i].Stop(); err != nil {
			t.Fatal(err)
		}
		s.startProxy(n, nodes[i].proxy(false))
		s.await("mode of "+n.Name, nodes[i].mode, func() string {
			_, mode, err := get(n, "http://127.0.0.1:10249/proxyMode")
			if err != nil {
				return err.Error()
			}
			return mode
		})
		s.await("rules on "+n.Name, nodes[i].traces, func() string { return s.traces(n) })
	}
	s.expectNodePorts(svc)
}

// expectNodePorts expects answers by the NodePort of a Service on all addresses
// that kube-proxy's default has it on.
func (s *scene) expectNodePorts(svc *v1.Service) {
	s.Helper()
	port := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, uint16(svc.Spec.Ports[0].NodePort)) }
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, n := range bed.Nodes {
		self := place{name: n.Name, host: n.Host, addrs: []netip.Addr{loopback, n.Addrs[1]}}
		for _, p := range []probe{
			{outside(n), port(n.Addrs[0]), "far"},
			{outside(n), port(vip), "far"},
			{self, port(loopback), "far"},
		} {
			s.expectBy(proxy.TCP, p)
		}
	}
}
