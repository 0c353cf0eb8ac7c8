package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// TestAPIServerDown takes the API server away for a while. Requests do not
// notice, not even on a node whose proxy restarts meanwhile. What is changed
// when the API server is back arrives everywhere.
func TestAPIServerDown(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")
	svc, l := s.loaded(ready(pods[0])...)
	s.expectEverywhere("web-1", clusterIPs(svc)...)

	bed.KillAPIServer()
	s.restart(2, bed.Nodes[2])
	s.awaitLog(s.proxies[2], "services", "refused")
	s.expectEverywhere("web-1", clusterIPs(svc)...)
	if err := bed.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.publish(svc, ready(pods[1])...)
	s.expectEverywhere("web-2", clusterIPs(svc)...)
	t.Logf("the change reached all nodes within %.1f s", time.Since(back).Seconds())
	s.report(l)
}

// behind starts the proxy of a node that knows the API server by a gate.
func (s *scene) behind(g *testbed.Gate, n *testbed.Node, args ...string) *process.Process {
	s.Helper()
	files, err := bed.NewUserAt(testbed.ProxyIdentity(n), g.At)
	if err != nil {
		s.Fatal(err)
	}
	return s.startProxy(n, testbed.Proxy{User: files, Args: args})
}

// TestWatchBroken breaks the connection of one proxy to the API server, again
// and again, and changes the endpoints each time while it is broken.
func TestWatchBroken(t *testing.T) {
	s := newBareScene(t)
	gate := s.gate()
	s.behind(gate, bed.Nodes[0])
	pods := s.pods("web")
	svc := s.service("web")
	s.publish(svc, ready(pods[0])...)
	s.expect(probe{s.clients[0], clusterIPs(svc)[0], "web-1"})
	for i, p := range []*testbed.Pod{pods[1], pods[2], pods[0]} {
		gate.Shut()
		s.publish(svc, ready(p)...)
		late := s.service(fmt.Sprintf("late-%d", i))
		s.publish(late, ready(p)...)
		if err := gate.Open(); err != nil {
			t.Fatal(err)
		}
		s.expect(probe{s.clients[0], clusterIPs(svc)[0], p.Name}, probe{s.clients[0], clusterIPs(late)[0], p.Name})
	}
}

// TestGone shuts the nodes out, changes things meanwhile and lets both etcd and
// the API server forget how things were: the nodes are told 410 Gone, and have
// to read everything anew.
func TestGone(t *testing.T) {
	s := newBareScene(t)
	gate := s.gate()
	for _, n := range bed.Nodes {
		s.proxies = append(s.proxies, s.behind(gate, n, "--v=4"))
	}
	pods := s.pods("web")
	changed, deleted := s.service("changed"), s.service("deleted")
	for _, pod := range pods[:2] { // a watch that has brought nothing is not resumed
		for _, svc := range []*v1.Service{changed, deleted} {
			s.publish(svc, ready(pod)...)
			s.expectEverywhere(pod.Name, clusterIPs(svc)...)
		}
	}

	gate.Shut()
	s.publish(changed, ready(pods[2])...)
	added := s.service("added")
	s.publish(added, ready(pods[2])...)
	if err := bed.Client.CoreV1().Services(s.namespace).Delete(t.Context(), deleted.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete Service: %v", err)
	}
	bed.KillAPIServer()
	if err := errors.Join(bed.Compact(t.Context()), bed.StartAPIServer(t.Context()), gate.Open()); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.proxies {
		s.awaitLog(p, "EndpointSlice", "too old resource version")
	}
	s.expectEverywhere("web-3", clusterIPs(changed)...)
	s.expectEverywhere("web-3", clusterIPs(added)...)
	s.expectEverywhere("silence", clusterIPs(deleted)...)
}
