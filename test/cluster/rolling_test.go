package cluster

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// loaded makes a Service with a NodePort and sends requests to it from a pod of
// each node, in both families, and from outside.
func (s *scene) loaded(members ...testbed.Member) (*v1.Service, *load) {
	s.Helper()
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(svc, members...)
	var streams []stream
	for i, from := range s.clients {
		streams = append(streams, stream{proxy.TCP, from, clusterIPs(svc)[i%2]})
	}
	for i, n := range bed.Nodes {
		streams = append(streams, stream{proxy.TCP, outside(n), nodePorts(n, svc)[(i+1)%2]})
	}
	s.awaitFirst(streams...)
	return svc, s.startLoad(beat, streams...)
}

// TestRollingUpdate replaces all pods of a Service, one by one, while requests
// keep coming: the new pod is ready before the old one is told to stop, and
// the old one answers a while longer. No request may fail.
func TestRollingUpdate(t *testing.T) {
	s := newScene(t)
	members := ready(s.pods("old")...)
	svc, l := s.loaded(members...)
	for i := range members {
		old := members[i].Pod
		fresh := s.pod(old.Node, fmt.Sprintf("new-%d", i+1))
		s.publish(svc, append(members, testbed.Member{Pod: fresh})...)
		s.awaitAnswers(l, fresh)

		members[i].Phase = testbed.Terminating
		s.publish(svc, append(members, testbed.Member{Pod: fresh})...)
		s.awaitQuiet(l, old)

		members[i] = testbed.Member{Pod: fresh}
		s.publish(svc, members...)
		if err := old.StopAnswering(); err != nil {
			t.Fatal(err)
		}
	}
	s.report(l)
}

// TestTerminatingOnly lets the only pods of a Service terminate before there
// are new ones. They still answer, so they are still asked.
func TestTerminatingOnly(t *testing.T) {
	s := newScene(t)
	old, fresh := s.pod(bed.Nodes[0], "old"), s.pod(bed.Nodes[1], "new")
	svc, l := s.loaded(ready(old)...)
	leaving := testbed.Member{Pod: old, Phase: testbed.Terminating}
	s.publish(svc, leaving)
	s.awaitAnswers(l, old)
	s.publish(svc, leaving, testbed.Member{Pod: fresh, Phase: testbed.Unready})
	s.awaitAnswers(l, old)
	s.publish(svc, leaving, testbed.Member{Pod: fresh})
	s.awaitQuiet(l, old)
	s.publish(svc, testbed.Member{Pod: fresh})
	s.report(l)
}
