package cluster

import (
	"net"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/test/cluster/testbed"
)

// explain asks the daemon of a node about a packet, and returns what it says.
func (s *scene) explain(n *testbed.Node, to string) string {
	s.Helper()
	p, err := bed.StartProgram(n, "explain", bed.Sluice(), "explain", to, "--socket="+bed.StatusSocket(n))
	if err != nil {
		s.Fatal(err)
	}
	_ = p.Wait() // the code is 1 where there is something to find
	return p.Log()
}

// TestExplainUnserved asks about Services that the API server does not send to
// proxies: a headless one, and one of another proxy, by name and by address.
func TestExplainUnserved(t *testing.T) {
	s := newScene(t)
	node := bed.Nodes[0]
	s.inForce(node)
	s.service("headless", func(svc *v1.Service) { svc.Spec.ClusterIP = v1.ClusterIPNone })
	aside := s.service("aside", func(svc *v1.Service) {
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
	})
	for to, want := range map[string]string{
		s.namespace + "/headless":                        "Headless",
		s.namespace + "/aside":                           "OtherProxy",
		net.JoinHostPort(aside.Spec.ClusterIPs[0], "80"): "OtherProxy",
		s.namespace + "/nothing":                         "no Service " + s.namespace + "/nothing",
	} {
		if text := s.explain(node, to); !strings.Contains(text, want) {
			t.Errorf("%s: want %q:\n%s", to, want, text)
		}
	}
}
