package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
)

const (
	// idleGap lies between two changes of an idle cluster. It is longer than the
	// second that kube-proxy leaves between two writes, so that no change has to
	// wait for the one before.
	idleGap = 1200 * time.Millisecond
	// busyGap lies between two of them while others change too, at least. Up to
	// busySpread is added: a second, so that changes come at every phase of a
	// proxy that writes once per second.
	busyGap    = 100 * time.Millisecond
	busySpread = time.Second
	// warmUp is how long others change before anything is measured.
	warmUp = 2 * time.Second
	// quiet is how long a proxy may take to have nothing more to do.
	quiet = 20 * time.Second
)

// changes replaces an endpoint again and again, while others change at a rate.
func (t *trial) changes(ctx context.Context, rate int) error {
	if err := t.settle(ctx, quiet); err != nil {
		return err
	}
	c := figures.Change{Rate: rate}
	churn := t.Load.Churn(ctx, rate)
	if rate > 0 {
		time.Sleep(warmUp)
	}
	cpu, err := t.proxy.CPU()
	if err != nil {
		return errors.Join(err, churn.Stop())
	}
	others, began := churn.Count(), time.Now()
	err = t.follow(ctx, &c)
	c.Window = figures.SecondsOf(time.Since(began))
	others = churn.Count() - others
	used, cpuErr := t.proxy.CPU()
	if err := errors.Join(err, cpuErr, churn.Stop()); err != nil {
		return err
	}
	c.CPU = figures.SecondsOf(used - cpu)
	c.Updates = others + len(c.Calls)
	c.Achieved = float64(others) / float64(c.Window)
	t.result.Changes = append(t.result.Changes, c)
	return nil
}

// follow takes the samples.
func (t *trial) follow(ctx context.Context, c *figures.Change) error {
	began := time.Now()
	alive, cancel := t.alive(ctx, t.Limits.Patience)
	defer cancel()
	for len(c.Samples) < t.Limits.Samples && time.Since(began) < t.Limits.Budget {
		step, at, err := t.sample(alive)
		if timeUp(err) {
			if step.Returned.IsZero() {
				return fmt.Errorf("the API server took longer than %v", t.Limits.Patience)
			}
			c.Calls = append(c.Calls, figures.SecondsOf(step.Returned.Sub(step.Sent)))
			c.Waiting = figures.SecondsOf(time.Since(step.Returned))
			return nil
		}
		if err != nil {
			return err
		}
		c.Calls = append(c.Calls, figures.SecondsOf(step.Returned.Sub(step.Sent)))
		c.Samples = append(c.Samples, figures.SecondsOf(at.Sub(step.Returned)))
		time.Sleep(gap(c.Rate, len(c.Samples)))
	}
	return nil
}

// gap is the time between change number n and the next. The golden ratio
// spreads any number of them evenly.
func gap(rate, n int) time.Duration {
	if rate == 0 {
		return idleGap
	}
	_, phase := math.Modf(float64(n) * math.Phi)
	return busyGap + time.Duration(phase*float64(busySpread))
}

// sample replaces the endpoint once and returns when traffic followed.
func (t *trial) sample(ctx context.Context) (load.Step, time.Time, error) {
	type followed struct {
		at  time.Time
		err error
	}
	done := make(chan followed, 1)
	want := t.Load.Next()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		at, err := t.site.client.Follow(ctx, load.Target(load.Probe).Addr, want)
		done <- followed{at, err}
	}()
	step, err := t.Load.Step(ctx)
	if err != nil {
		cancel(err)
		<-done
		return load.Step{}, time.Time{}, err
	}
	f := <-done
	return step, f.at, f.err
}

// settle waits until the proxy does next to nothing, but no longer than limit.
func (t *trial) settle(ctx context.Context, limit time.Duration) error {
	const window, little = 500 * time.Millisecond, 20 * time.Millisecond
	for began := time.Now(); time.Since(began) < limit && ctx.Err() == nil; {
		before, err := t.proxy.CPU()
		if err != nil {
			return err
		}
		time.Sleep(window)
		after, err := t.proxy.CPU()
		if err != nil || after-before <= little {
			return err
		}
	}
	return ctx.Err()
}
