package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"sluice/internal/conformance/traffic"
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

	mu      sync.Mutex
	answers map[netip.Addr]answers // by who gave them
	recent  tally
}

// answers are those of one pod.
type answers struct {
	count int
	last  time.Time // when the last request that it answered was sent
}

// tally is what became of requests.
type tally struct {
	answered map[proxy.Protocol]int
	failed   map[proxy.Protocol]int
	failures []string
	slowest  time.Duration
	slow     string // which that was
}

func newTally() tally {
	return tally{answered: map[proxy.Protocol]int{}, failed: map[proxy.Protocol]int{}}
}

// stream is one client of a load.
type stream struct {
	protocol proxy.Protocol
	from     place
	to       netip.AddrPort
}

// startLoad sends requests until stop is called, two of each stream at a time.
func (s *scene) startLoad(pause time.Duration, streams ...stream) *load {
	ctx, cancel := context.WithCancel(s.Context())
	l := &load{answers: map[netip.Addr]answers{}, recent: newTally()}
	var running sync.WaitGroup
	for _, one := range streams {
		running.Go(func() { l.send(ctx, pause, one) })
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	s.Cleanup(l.stop)
	return l
}

// send sends two requests at a time until ctx ends. What is under way then is
// waited for: it counts like all others.
func (l *load) send(ctx context.Context, pause time.Duration, one stream) {
	flow := traffic.Flow{
		Protocol: one.protocol, Src: one.from.addrs[proxy.FamilyOf(one.to.Addr())], Dst: one.to,
		Patience: 2 * time.Second, Socket: traffic.Socket{Unbound: one.from.free},
	}
	flows := []traffic.Flow{flow, flow}
	if one.protocol == proxy.UDP {
		for i := range flows {
			flows[i].Patience, flows[i].Unconnected = 900*time.Millisecond, i > 0 // too short for a datagram to be sent again
		}
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for ctx.Err() == nil {
		sent := time.Now()
		seen, err := one.from.host.Probe(context.Background(), flows)
		l.count(one, sent, seen, err)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (l *load) count(one stream, sent time.Time, seen []traffic.Seen, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.recent.failures = append(l.recent.failures, err.Error())
		return
	}
	if took := time.Since(sent); took > l.recent.slowest {
		l.recent.slowest, l.recent.slow = took, fmt.Sprintf("%s %v from %s to %v", sent.Format("15:04:05.000"), one.protocol, one.from.name, one.to)
	}
	for _, what := range seen {
		if what.Fate == traffic.Answered {
			l.recent.answered[one.protocol]++
			by := what.By.Addr()
			l.answers[by] = answers{l.answers[by].count + 1, sent}
			continue
		}
		l.recent.failed[one.protocol]++
		l.recent.failures = append(l.recent.failures, fmt.Sprintf("%s %s %v to %v: %v",
			sent.Format("15:04:05.000"), one.from.name, one.protocol, one.to, what))
	}
}

// of returns the answers of a pod so far.
func (l *load) of(p *testbed.Pod) answers {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum answers
	for _, a := range p.Addrs {
		one := l.answers[a]
		sum.count += one.count
		if one.last.After(sum.last) {
			sum.last = one.last
		}
	}
	return sum
}

// take returns what became of the requests since the last time.
func (l *load) take() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.recent
	l.recent = newTally()
	return t
}

// report ends the load and fails the test if a request has.
func (s *scene) report(l *load) {
	s.Helper()
	l.stop()
	t := l.take()
	s.Logf("%d requests answered, %d failed", t.answered[proxy.TCP], len(t.failures))
	if t.answered[proxy.TCP] == 0 {
		s.Error("not one request was answered")
	}
	s.blame(t.failures)
}

// blame fails the test for each of some failures, up to a number.
func (s *scene) blame(failures []string) {
	s.Helper()
	for i, f := range failures {
		if i == 10 {
			s.Errorf("and %d more", len(failures)-i)
			return
		}
		s.Error(f)
	}
}

// awaitAnswers waits until a pod has given a good number of answers more.
func (s *scene) awaitAnswers(l *load, p *testbed.Pod) {
	s.Helper()
	const many = 50
	from := l.of(p).count
	s.await("answers of "+p.Name, "true", func() string { return fmt.Sprint(l.of(p).count >= from+many) })
}

// awaitQuiet waits until a pod has had nothing to do for as long as it drains.
func (s *scene) awaitQuiet(l *load, p *testbed.Pod) {
	s.Helper()
	last, since := l.of(p).count, time.Now()
	s.await("quiet at "+p.Name, "true", func() string {
		if now := l.of(p).count; now != last {
			last, since = now, time.Now()
		}
		return fmt.Sprint(time.Since(since) > drain)
	})
}

// awaitFirst waits until every stream is answered.
func (s *scene) awaitFirst(streams ...stream) {
	s.Helper()
	for _, one := range streams {
		s.await(fmt.Sprintf("first answers from %v", one.to), "", func() string {
			for _, seen := range s.ask(one.protocol, one.from, one.to, 3) {
				if seen.Fate != traffic.Answered {
					return seen.String()
				}
			}
			return ""
		})
	}
}
