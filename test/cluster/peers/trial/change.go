package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/process"
)

const (
	// idleGap is the interval between changes in an idle cluster. It exceeds the second that
	// kube-proxy leaves between two writes, so that no change waits for the previous one.
	idleGap = 1200 * time.Millisecond
	// busyGap is the minimum interval during churn.
	busyGap = 100 * time.Millisecond
)

// sampler repeatedly replaces the endpoint of the Service Probe.
type sampler struct {
	*Bench
	samples int           // at most
	spread  time.Duration // added to busyGap, so that changes hit every phase of a proxy's period
	// await returns when the Service was seen with an endpoint.
	await func(ctx context.Context, endpoint netip.Addr) (time.Time, error)
}

// gap returns the interval after change number n. The golden ratio spreads any number of them
// evenly.
func (s sampler) gap(rate, n int) time.Duration {
	if rate == 0 {
		return idleGap
	}
	_, phase := math.Modf(float64(n) * math.Phi)
	return busyGap + time.Duration(phase*float64(s.spread))
}

// run takes samples during churn at a rate, and records the resources that a process used.
func (s sampler) run(ctx context.Context, rate int, p *process.Process) (figures.Change, error) {
	return observe(p, s.Load.Churn(ctx, rate), func(c *figures.Change) error {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, s.Limits.Patience)
		defer cancel()
		for len(c.Samples) < s.samples && time.Since(began) < s.Limits.Budget && c.Waiting == 0 {
			if err := s.sample(ctx, c); err != nil {
				return err
			}
			time.Sleep(s.gap(rate, len(c.Samples)))
		}
		return nil
	})
}

// sample takes one sample.
func (s sampler) sample(ctx context.Context, c *figures.Change) error {
	endpoint := s.Load.Next()
	var step load.Step
	var at time.Time
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		at, err = s.await(ctx, endpoint)
		return err
	})
	g.Go(func() (err error) {
		step, err = s.Load.Step(ctx)
		return err
	})
	err := g.Wait()
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case err != nil && !late:
		return err
	case step.Returned.IsZero():
		return fmt.Errorf("the API server took longer than %v", s.Limits.Patience)
	case late:
		c.Waiting = figures.SecondsOf(time.Since(step.Returned))
	default:
		c.Samples = append(c.Samples, figures.SecondsOf(at.Sub(step.Returned)))
	}
	c.Calls = append(c.Calls, figures.SecondsOf(step.Returned.Sub(step.Sent)))
	return nil
}

// changes measures how long traffic takes to follow a change.
func (t *trial) changes(ctx context.Context, rate int) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := sampler{
		Bench: t.Bench, samples: t.Limits.Samples, spread: time.Second, // some proxies write once per second
		await: func(ctx context.Context, endpoint netip.Addr) (time.Time, error) {
			return t.site.client.Follow(ctx, load.Target(load.Probe).Addr, endpoint)
		},
	}
	c, err := s.run(t.proxy.Context(ctx), rate, t.proxy)
	if err != nil {
		return "", err
	}
	t.result.Changes = append(t.result.Changes, c)
	return fmt.Sprintf("p50 %v, p90 %v, max %v of %d, CPU %v per update at %.0f/s",
		c.Percentile(50), c.Percentile(90), c.Percentile(100), len(c.Samples), c.PerUpdate(), c.Achieved), nil
}

// scale measures the cost of an update while the numbers of endpoints change.
func (t *trial) scale(ctx context.Context) (string, error) {
	c, err := observe(t.proxy, t.Load.Scale(ctx, t.ScaleRate), sleep(20*time.Second))
	if err == nil && c.Updates == 0 {
		err = errors.New("nothing changed")
	}
	if err != nil {
		return "", err
	}
	t.result.Changes = append(t.result.Changes, c)
	return fmt.Sprintf("CPU %v per update at %.0f/s", c.PerUpdate(), c.Achieved), nil
}
