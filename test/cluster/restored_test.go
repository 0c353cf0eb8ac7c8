package cluster

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/reliability"
	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// outage is how long there is no control plane.
var outage = flag.Duration("outage", 12*time.Second, "how `LONG` API server and etcd are away, with endpoints that change meanwhile")

// TestControlPlaneLost takes the API server and etcd away for a while, after endpoints
// have changed without the nodes hearing of it, while requests keep coming on nodes
// with a mode each. None of them may fail: old pods answer for a while longer, as
// nobody can tell them to stop. When all is back, every node has the new endpoints
// before long.
func TestControlPlaneLost(t *testing.T) {
	s := newBareScene(t)
	gate := s.gate()
	modes := []string{testbed.NFTables, testbed.IPTables, testbed.Userspace}
	for i, n := range bed.Nodes {
		s.proxies = append(s.proxies, s.behind(gate, n, "--proxy-mode="+modes[i]))
	}
	old, fresh := s.pods("old"), s.pods("new")
	svc, all := s.loaded(ready(old...)...)
	var loads []*load
	for i := range bed.Nodes {
		loads = append(loads, s.startLoad(beat, stream{proxy.TCP, s.clients[i], clusterIPs(svc)[i%2]}))
	}

	gate.Shut()
	s.publish(svc, ready(fresh...)...)
	bed.KillAPIServer()
	bed.KillEtcd()
	<-time.After(*outage)
	if err := errors.Join(bed.StartEtcd(t.Context()), bed.StartAPIServer(t.Context()), gate.Open()); err != nil {
		t.Fatal(err)
	}
	took := s.converged(time.Now(), svc, "new-1 new-2 new-3")
	for i, l := range loads {
		l.stop()
		seen := l.take()
		reliability.Record(t, reliability.Result{
			Fault: fmt.Sprintf("API server and etcd killed for %v, endpoints replaced meanwhile", *outage), Mode: modes[i], Tried: 1,
			Requests: seen.answered[proxy.TCP] + seen.failed[proxy.TCP], Failed: seen.failed[proxy.TCP],
			Repairs: []time.Duration{took[i]}, Note: "the repair is from when the API server could be reached again",
		})
		if seen.answered[proxy.TCP] == 0 {
			t.Errorf("%s: not one request was answered", modes[i])
		}
		s.blame(seen.failures)
	}
	s.report(all)
}

// converged waits until clients on all nodes are answered as they should be, and
// returns how long that took, by node.
func (s *scene) converged(since time.Time, svc *v1.Service, want string) []time.Duration {
	s.Helper()
	took := make([]time.Duration, len(s.clients))
	s.await("answers of "+want+" on all nodes", "", func() string {
		for i, from := range s.clients {
			if took[i] == 0 && s.who(s.ask(proxy.TCP, from, clusterIPs(svc)[i%2], enough)) == want {
				took[i] = time.Since(since)
			}
		}
		if slices.Contains(took, 0) {
			return fmt.Sprint("after ", took)
		}
		return ""
	})
	return took
}
