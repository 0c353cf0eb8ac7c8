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
	To       netip.Addr // the new endpoint
	Sent     time.Time
	Returned time.Time // when the API server had answered
}

// Next returns the endpoint of the next Step. It has not been in use for a while, so that a slow
// proxy is not mistaken for a fast one.
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

// Churn is a steady rate of changes of other Services' endpoints.
type Churn struct {
	Rate int // wanted, per second

	count   atomic.Int64
	cancel  context.CancelFunc
	running errgroup.Group
}

// Churn replaces one endpoint of one Service after the other, so many per second. Only one Churn
// may run at a time.
func (l *Load) Churn(ctx context.Context, rate int) *Churn { return l.churn(ctx, rate, l.replace) }

// Scale removes one endpoint from one Service after the other, and restores it in the next round,
// so many per second, as rolling updates do.
func (l *Load) Scale(ctx context.Context, rate int) *Churn { return l.churn(ctx, rate, l.scale) }

func (l *Load) churn(ctx context.Context, rate int, change func(ctx context.Context, n int) error) *Churn {
	ctx, cancel := context.WithCancel(ctx)
	c := &Churn{Rate: rate, cancel: cancel}
	if rate == 0 {
		return c
	}
	// Several calls may be in flight: rate is that of changes, not of a single slow call. Ticks
	// that are missed because all calls are slow are not made up for.
	const maxInFlight = 16
	var calls errgroup.Group
	calls.SetLimit(maxInFlight)
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
					return nil // stopped
				}
				return err
			})
		}
	})
	return c
}

// Count returns the number of changes so far.
func (c *Churn) Count() int { return int(c.count.Load()) }

// Stop stops the changes and returns the first error of a change.
func (c *Churn) Stop() error {
	c.cancel()
	return c.running.Wait()
}

// replace makes change number n of an endpoint. Consecutive changes go to distant Services; after a
// round over all Services, other addresses are used.
func (l *Load) replace(ctx context.Context, n int) error {
	service, round := l.target(n)
	numbers := numbersBelow(l.Size.Endpoints)
	spare := stride - l.Size.Endpoints
	numbers[len(numbers)-1] += round % (spare + 1)
	return l.update(ctx, service, numbers...)
}

// scale makes change number n of the number of endpoints.
func (l *Load) scale(ctx context.Context, n int) error {
	service, round := l.target(n)
	return l.update(ctx, service, numbersBelow(l.Size.Endpoints-round%2)...)
}

// target returns the Service of change number n, and the number of its round.
func (l *Load) target(n int) (service, round int) {
	const far = 7919 // a prime, so that every Service is hit
	return n * far % l.Size.Services, n/l.Size.Services + 1
}
