package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

const (
	// beat is how often each client of a load sends its requests.
	beat = 10 * time.Millisecond
	// drain is how long a pod goes on answering after it was told to stop: what
	// a preStop hook is for.
	drain = 500 * time.Millisecond
)

// load is requests without a pause, and what became of them.
type load struct {
	stop func()

	mu       sync.Mutex
	answers  map[netip.AddrPort]int // by who gave them
	failures []string
}

// stream is one client of a load.
type stream struct {
	from place
	to   netip.AddrPort
}

// startLoad sends requests until stop is called.
func (s *scene) startLoad(streams ...stream) *load {
	ctx, cancel := context.WithCancel(s.Context())
	l := &load{answers: map[netip.AddrPort]int{}}
	var running sync.WaitGroup
	for _, one := range streams {
		running.Go(func() { l.send(ctx, one) })
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	s.Cleanup(l.stop)
	return l
}

// send sends two requests at each beat until ctx ends. What is under way then
// is waited for: it counts like all others.
func (l *load) send(ctx context.Context, one stream) {
	flow := lab.Flow{
		Protocol: proxy.TCP, Src: one.from.addrs[proxy.FamilyOf(one.to.Addr())], Dst: one.to,
		Patience: 2 * time.Second,
	}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for ctx.Err() == nil {
		seen, err := one.from.host.Probe(context.Background(), []lab.Flow{flow, flow})
		l.count(one, seen, err)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (l *load) count(one stream, seen []lab.Seen, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures = append(l.failures, err.Error())
		return
	}
	for _, what := range seen {
		if what.Fate == lab.Answered {
			l.answers[what.By]++
			continue
		}
		l.failures = append(l.failures, fmt.Sprintf("%s %s to %v: %v",
			time.Now().Format("15:04:05.000"), one.from.name, one.to, what))
	}
}

// total returns the answers so far, of one pod or, without one, of all.
func (l *load) total(of ...*testbed.Pod) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int
	for by, count := range l.answers {
		if len(of) == 0 || by.Addr() == of[0].Addrs[0] || by.Addr() == of[0].Addrs[1] {
			n += count
		}
	}
	return n
}

// report ends the load and fails the test if a request has.
func (s *scene) report(l *load) {
	s.Helper()
	l.stop()
	total := l.total()
	s.Logf("%d requests answered, %d failed", total, len(l.failures))
	if total == 0 {
		s.Error("not one request was answered")
	}
	for i, f := range l.failures {
		if i == 10 {
			s.Errorf("and %d more", len(l.failures)-i)
			break
		}
		s.Error(f)
	}
}

// loaded makes a Service with a NodePort and sends requests to it from a pod of
// each node, in both families, and from outside.
func (s *scene) loaded(members ...testbed.Member) (*v1.Service, *load) {
	s.Helper()
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(svc, members...)
	var streams []stream
	for i, from := range s.clients {
		streams = append(streams, stream{from, clusterIPs(svc)[i%2]})
	}
	for i, n := range bed.Nodes {
		streams = append(streams, stream{outside(n), nodePorts(n, svc)[(i+1)%2]})
	}
	for _, one := range streams {
		s.await(fmt.Sprintf("first answers from %v", one.to), "", func() string {
			for _, seen := range s.ask(proxy.TCP, one.from, one.to, 3) {
				if seen.Fate != lab.Answered {
					return seen.String()
				}
			}
			return ""
		})
	}
	return svc, s.startLoad(streams...)
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

// awaitAnswers waits until a pod has given a good number of answers more.
func (s *scene) awaitAnswers(l *load, p *testbed.Pod) {
	s.Helper()
	const many = 50
	from := l.total(p)
	s.await("answers of "+p.Name, "true", func() string { return fmt.Sprint(l.total(p) >= from+many) })
}

// awaitQuiet waits until a pod has had nothing to do for as long as it drains.
func (s *scene) awaitQuiet(l *load, p *testbed.Pod) {
	s.Helper()
	last, since := l.total(p), time.Now()
	s.await("quiet at "+p.Name, "true", func() string {
		if now := l.total(p); now != last {
			last, since = now, time.Now()
		}
		return fmt.Sprint(time.Since(since) > drain)
	})
}
