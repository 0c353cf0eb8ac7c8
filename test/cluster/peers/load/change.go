package load

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// Step is one change of the Service Probe.
type Step struct {
	To       netip.Addr // its only endpoint now
	Sent     time.Time
	Returned time.Time // the API server had answered
}

// next is the number of the endpoint that the next Step leads to. It has not
// been one for a while, so that a proxy that is late is not taken for a quick one.
func (l *Load) next() int { return (l.probes + 1) % stride }

// Next is the endpoint that the next Step leads to.
func (l *Load) Next() netip.Addr { return Endpoint(Probe, l.next()) }

// Step replaces the endpoint of the Service Probe.
func (l *Load) Step(ctx context.Context) (Step, error) {
	s := Step{To: l.Next(), Sent: time.Now()}
	err := l.update(ctx, Probe, l.next())
	s.Returned = time.Now()
	if err == nil {
		l.probes++
	}
	return s, err
}

// Churn is other Services' endpoints changing at a steady rate.
type Churn struct {
	mu     sync.Mutex
	count  int
	failed error

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Churn replaces one endpoint of one Service after the other, so many per
// second. The load must not be used for another Churn until Stop.
func (l *Load) Churn(ctx context.Context, perSecond int) *Churn {
	return l.churn(ctx, perSecond, l.disturb)
}

// Scale takes one endpoint from one Service after the other, and gives it back
// in the next round, so many per second: changes that rolling updates are made of.
func (l *Load) Scale(ctx context.Context, perSecond int) *Churn {
	return l.churn(ctx, perSecond, l.scale)
}

func (l *Load) churn(ctx context.Context, perSecond int, change func(context.Context, int) error) *Churn {
	ctx, cancel := context.WithCancel(ctx)
	c := &Churn{cancel: cancel}
	if perSecond == 0 || l.Size.Services == 0 {
		return c
	}
	// A few changes may be under way at once: the rate is the changes', not that
	// of a single slow call.
	const workers = 16
	due := make(chan int)
	c.running.Go(func() {
		defer close(due)
		l.schedule(ctx, perSecond, due)
	})
	for range workers {
		c.running.Go(func() {
			for number := range due {
				c.note(ctx, change(ctx, number))
			}
		})
	}
	return c
}

// schedule hands out changes when they are due. If nobody takes one it is late,
// and not made up for.
func (l *Load) schedule(ctx context.Context, perSecond int, due chan<- int) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case due <- l.churns:
			l.churns++
		}
	}
}

// disturb makes change number n. Each goes to another Service, far from the
// last one; when all have had theirs, the next addresses are used.
func (l *Load) disturb(ctx context.Context, n int) error {
	service, round := l.spread(n)
	numbers := first(l.Size.Endpoints)
	spare := stride - l.Size.Endpoints
	numbers[len(numbers)-1] += round % (spare + 1)
	return l.update(ctx, service, numbers...)
}

// scale makes change number n of the number of endpoints.
func (l *Load) scale(ctx context.Context, n int) error {
	service, round := l.spread(n)
	return l.update(ctx, service, first(l.Size.Endpoints-round%2)...)
}

// spread returns to which Service change number n goes, and how many it has had.
func (l *Load) spread(n int) (service, round int) {
	const far = 7919 // a prime, so that no Service is left out
	return n * far % l.Size.Services, n/l.Size.Services + 1
}

func (c *Churn) note(ctx context.Context, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.count++
	case ctx.Err() == nil && c.failed == nil:
		c.failed = err
	}
}

// Count returns how many changes there were so far.
func (c *Churn) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// Stop ends it and returns why a change failed, if one has.
func (c *Churn) Stop() error {
	c.cancel()
	c.running.Wait()
	return c.failed
}
