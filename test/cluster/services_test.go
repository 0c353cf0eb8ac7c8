package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// Addresses that the world sends to whichever node it likes.
const (
	externalIPv4, externalIPv6 = "198.51.100.7", "2001:db8:e::7"
	balancerIPv4, balancerIPv6 = "198.51.100.8", "2001:db8:e::8"
)

// onPort pairs addresses with the Service's port.
func onPort(addrs ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), servicePort))
	}
	return out
}

// nodePorts returns where a node listens for a Service.
func nodePorts(n *testbed.Node, svc *v1.Service) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range n.Addrs {
		out = append(out, netip.AddrPortFrom(a, uint16(svc.Spec.Ports[0].NodePort)))
	}
	return out
}

// balanced makes a Service of the type LoadBalancer that also has external IPs.
func balanced(svc *v1.Service) {
	svc.Spec.Type = v1.ServiceTypeLoadBalancer
	svc.Spec.ExternalIPs = []string{externalIPv4, externalIPv6}
}

// giveVIPs plays the load balancer's controller.
func (s *scene) giveVIPs(svc *v1.Service, vips ...string) {
	s.Helper()
	mode := v1.LoadBalancerIPModeVIP
	svc.Status.LoadBalancer.Ingress = nil
	for _, ip := range vips {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip, IPMode: &mode})
	}
	api := bed.Client.CoreV1().Services(s.namespace)
	if _, err := api.UpdateStatus(s.Context(), svc, metav1.UpdateOptions{}); err != nil {
		s.Fatalf("set the addresses of %s: %v", svc.Name, err)
	}
}

// TestServiceKinds asks for every kind of address, in both families, with TCP
// and UDP, from pods, nodes and outside.
func TestServiceKinds(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")
	const all = "web-1 web-2 web-3"
	svc := s.service("web", balanced)
	s.publish(svc, ready(pods...)...)
	s.giveVIPs(svc, balancerIPv4, balancerIPv6)
	n := bed.Nodes

	s.expectEverywhere(all, clusterIPs(svc)...)
	s.expectEverywhere(all, onPort(externalIPv4, externalIPv6, balancerIPv4, balancerIPv6)...)
	for _, to := range clusterIPs(svc) {
		s.expect(probe{onNode(n[1]), to, all})
	}
	for i, node := range n {
		for _, to := range nodePorts(node, svc) {
			s.expect(probe{outside(node), to, all}, probe{s.clients[(i+1)%len(n)], to, all}, probe{onNode(node), to, all})
		}
		for _, to := range onPort(externalIPv4, balancerIPv6) {
			s.expect(probe{outside(node), to, all})
		}
	}

	// A Service that changes its type loses its ports and addresses.
	ports := nodePorts(n[0], svc)
	s.update(svc, func(svc *v1.Service) {
		svc.Spec.Type, svc.Spec.ExternalIPs = v1.ServiceTypeClusterIP, nil
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = 0
		}
	})
	for _, to := range ports {
		s.expectBy(proxy.TCP, probe{outside(n[0]), to, "reset"})
	}
	s.expectEverywhere(all, clusterIPs(svc)...)
}

// TestEndpointsComeAndGo follows one Service through all that can happen to
// its endpoints and to itself.
func TestEndpointsComeAndGo(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")
	svc := s.service("web")
	addrs := clusterIPs(svc)
	s.expectEverywhere("refused", addrs...)
	s.publish(svc, ready(pods[0])...)
	s.expectEverywhere("web-1", addrs...)
	s.publish(svc, ready(pods...)...)
	s.expectEverywhere("web-1 web-2 web-3", addrs...)
	s.publish(svc, testbed.Member{Pod: pods[0], Phase: testbed.Unready}, testbed.Member{Pod: pods[1]})
	s.expectEverywhere("web-2", addrs...)
	if err := bed.Unpublish(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	s.expectEverywhere("refused", addrs...)
	s.publish(svc, ready(pods[2])...)
	s.expectEverywhere("web-3", addrs...)
	if err := bed.Client.CoreV1().Services(s.namespace).Delete(t.Context(), svc.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.expectEverywhere("silence", addrs...) // the address belongs to nobody now
}

// TestTrafficPolicies has endpoints on the nodes 1 and 2 and none on node 3.
func TestTrafficPolicies(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")[:2]
	local := s.service("local", balanced, func(svc *v1.Service) {
		within := v1.ServiceInternalTrafficPolicyLocal
		svc.Spec.InternalTrafficPolicy = &within
		svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	})
	cluster := s.service("cluster", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(local, ready(pods...)...)
	s.publish(cluster, ready(pods...)...)
	s.giveVIPs(local, balancerIPv4, balancerIPv6)
	const all = "web-1 web-2"
	own := []string{"web-1", "web-2", "silence"}
	for i, node := range bed.Nodes {
		for _, to := range clusterIPs(local) {
			s.expect(probe{s.clients[i], to, own[i]}, probe{onNode(node), to, own[i]})
		}
		for _, to := range append(nodePorts(node, local), onPort(balancerIPv4, balancerIPv6, externalIPv4, externalIPv6)...) {
			s.expect(probe{outside(node), to, own[i]})
		}
		// Inside the cluster an outer address leads to every endpoint.
		for _, to := range onPort(balancerIPv4, balancerIPv6) {
			s.expect(probe{s.clients[i], to, all}, probe{onNode(node), to, all})
		}
		for _, to := range append(nodePorts(node, cluster), clusterIPs(cluster)...) {
			s.expect(probe{outside(node), to, all})
		}
	}
	s.checkClients(local, cluster)
}

// checkClients checks that policy Local keeps the client's address and policy
// Cluster does not.
func (s *scene) checkClients(local, cluster *v1.Service) {
	s.Helper()
	node := bed.Nodes[0]
	from := outside(node)
	for family := range node.Addrs {
		kept := clientsSeen(s.ask(proxy.TCP, from, nodePorts(node, local)[family], enough))
		if diff := cmp.Diff(from.addrs[family].String(), kept); diff != "" {
			s.Errorf("client seen behind a Service with policy Local mismatch (-want +got):\n%s", diff)
		}
		for _, one := range s.ask(proxy.TCP, from, nodePorts(node, cluster)[family], enough) {
			if one.Client == from.addrs[family] {
				s.Errorf("policy Cluster: %v saw the client %v, which it must not answer by itself", one.By, one.Client)
			}
		}
	}
}

// TestProxyName has a Service change hands between proxies.
func TestProxyName(t *testing.T) {
	s := newScene(t)
	pod := s.pod(bed.Nodes[1], "web")
	other := func(svc *v1.Service) { svc.Labels = map[string]string{testbed.LabelProxyName: "another"} }
	none := func(svc *v1.Service) { svc.Labels = nil }
	svc, foreign := s.service("ours"), s.service("theirs", other)
	s.publish(svc, ready(pod)...)
	s.publish(foreign, ready(pod)...)

	s.expectEverywhere("web", clusterIPs(svc)...)
	s.expectEverywhere("silence", clusterIPs(foreign)...)
	s.publish(s.update(svc, other), ready(pod)...)
	s.publish(s.update(foreign, none), ready(pod)...)
	s.expectEverywhere("silence", clusterIPs(svc)...)
	s.expectEverywhere("web", clusterIPs(foreign)...)
	s.publish(s.update(svc, none), ready(pod)...)
	s.expectEverywhere("web", clusterIPs(svc)...)
}

// TestKubernetesService reaches the API server as pods do, by its Service.
func TestKubernetesService(t *testing.T) {
	s := newScene(t)
	svc, err := bed.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), uint16(svc.Spec.Ports[0].Port))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bed.Authority.Cert)
	for _, from := range s.clients {
		s.await(to.String()+" from "+from.name, "the API server", func() string {
			conn, err := from.host.Dial(t.Context(), proxy.TCP, netip.Addr{}, to)
			if err != nil {
				return err.Error()
			}
			defer conn.Close()
			if err := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: to.Addr().String()}).Handshake(); err != nil {
				return err.Error()
			}
			return "the API server"
		})
	}
}
