package load

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Step is one change of the Service Probe.
type Step struct {
	To       netip.Addr // its only endpoint now
	Sent     time.Time
	Returned time.Time // the API server had answered
}

// Next is the endpoint that the next Step leads to. It has not been one for a
// while, so that a proxy that is late is not taken for a quick one.
func (l *Load) Next() netip.Addr { return Endpoint(Probe, l.probes+1) }

// Step replaces the endpoint of the Service Probe.
func (l *Load) Step(ctx context.Context) (Step, error) {
	s := Step{To: l.Next(), Sent: time.Now()}
	if err := l.update(ctx, Probe, l.probes+1); err != nil {
		return Step{}, err
	}
	s.Returned = time.Now()
	l.probes = (l.probes + 1) % (stride - 1)
	return s, nil
}

// Churn is other Services' endpoints changing at a steady rate.
type Churn struct {
	Rate int // wanted, per second

	count   atomic.Int64
	cancel  context.CancelFunc
	running errgroup.Group
}

// Churn replaces one endpoint of one Service after the other, so many per
// second. The load must not be used for another Churn until Stop.
func (l *Load) Churn(ctx context.Context, rate int) *Churn { return l.churn(ctx, rate, l.replace) }

// Scale takes one endpoint from one Service after the other, and gives it back
// in the next round, so many per second: changes that rolling updates are made of.
func (l *Load) Scale(ctx context.Context, rate int) *Churn { return l.churn(ctx, rate, l.scale) }

func (l *Load) churn(ctx context.Context, rate int, change func(ctx context.Context, n int) error) *Churn {
	ctx, cancel := context.WithCancel(ctx)
	c := &Churn{Rate: rate, cancel: cancel}
	if rate == 0 {
		return c
	}
	// A few changes may be under way at once: the rate is the changes', not that
	// of a single slow call. What is late because all of them are slow is not made up for.
	const atOnce = 16
	var calls errgroup.Group
	calls.SetLimit(atOnce)
	c.running.Go(func() error {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for ; ; l.churns++ {
			select {
			case <-ctx.Done():
				return calls.Wait()
			case <-tick.C:
			}
			n := l.churns
			calls.Go(func() error {
				err := change(ctx, n)
				if err == nil {
					c.count.Add(1)
				} else if ctx.Err() != nil {
					return nil // it was stopped
				}
				return err
			})
		}
	})
	return c
}

// Count returns how many changes there were so far.
func (c *Churn) Count() int { return int(c.count.Load()) }

// Stop ends it and returns why a change failed, if one has.
func (c *Churn) Stop() error {
	c.cancel()
	return c.running.Wait()
}

// replace makes change number n of an endpoint. Each goes to another Service,
// far from the last one; when all have had theirs, the next addresses are used.
func (l *Load) replace(ctx context.Context, n int) error {
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
