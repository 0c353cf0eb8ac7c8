package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Target is a destination and who may answer there.
type Target struct {
	Addr netip.AddrPort
	Has  func(endpoint netip.Addr) bool // nil: anybody
}

const (
	askers = 4 // threads that ask for many targets
	// pause is between two attempts at one target that does not answer: the
	// resolution of what Await returns.
	pause = 5 * time.Millisecond
	// patience is how long no answer is not yet silence, at most.
	patience = 250 * time.Millisecond
)

// growing is the patience of someone who has waited since then: first little,
// so that what was dropped before the rules were there does not hide that they
// are, and later more, as a busy machine may need it.
func growing(since time.Time) time.Duration {
	const least = 20 * time.Millisecond
	return min(max(least, time.Since(since)/100), patience)
}

// Answers is when targets were first seen to answer.
type Answers struct {
	First time.Time // any of them; the zero time if none has
	All   time.Time // each of them; the zero time if some have not
	Count int       // how many have
}

// Await asks all targets, each until it has answered, and returns when that
// was. It ends early with ctx. An error means that the wrong endpoint answered.
func (c *Client) Await(ctx context.Context, targets []Target) (Answers, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var first sync.Once
	var out Answers
	var count atomic.Int64
	var running sync.WaitGroup
	for w := range askers {
		share := targets[len(targets)*w/askers : len(targets)*(w+1)/askers]
		running.Go(func() {
			err := c.host.Do(func() error {
				for _, t := range share {
					if err := persist(ctx, t); err != nil {
						return err
					}
					first.Do(func() { out.First = time.Now() })
					count.Add(1)
				}
				return nil
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	out.Count = int(count.Load())
	if out.Count == len(targets) {
		out.All = time.Now()
		return out, nil
	}
	if err := context.Cause(ctx); err != context.DeadlineExceeded && err != context.Canceled {
		return out, err
	}
	return out, nil
}

// persist asks one target until it answers.
func persist(ctx context.Context, t Target) error {
	for began := time.Now(); ; {
		by, err := ask(proxy.TCP, t.Addr, growing(began))
		if err == nil {
			if t.Has != nil && !t.Has(by) {
				return fmt.Errorf("ask %v: answered by %v, which is none of its endpoints", t.Addr, by)
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(pause)
	}
}

// Follow asks a target again and again until the wanted endpoint answers, and
// returns when that was. The longer it takes, the less often it asks: the figure
// is within a few connections' time or one part in a hundred, and asking costs
// little.
func (c *Client) Follow(ctx context.Context, to netip.AddrPort, want netip.Addr) (time.Time, error) {
	var at time.Time
	err := c.host.Do(func() error {
		began := time.Now()
		for ctx.Err() == nil {
			by, err := ask(proxy.TCP, to, growing(began))
			if now := time.Now(); err == nil && by == want {
				at = now
				return nil
			}
			rest(min(max(50*time.Microsecond, time.Since(began)/100), 20*time.Millisecond))
		}
		return context.Cause(ctx)
	})
	return at, err
}

// rest lets this thread sleep. For short times that is more exact than a timer of
// the Go runtime, and wakes nobody else up.
func rest(d time.Duration) {
	wait := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&wait, nil) // an interrupted rest is only shorter
}

// Monitor makes connections at a steady pace and counts those that fail.
type Monitor struct {
	Asked, Failed int
	Err           error // of the first that failed

	stop    chan struct{}
	running sync.WaitGroup
}

// Monitor starts one, which asks the targets in turn.
func (c *Client) Monitor(targets []Target) *Monitor {
	m := &Monitor{stop: make(chan struct{})}
	m.running.Go(func() {
		err := c.host.Do(func() error {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-m.stop:
					return nil
				case <-tick.C:
					m.ask(targets[i%len(targets)])
				}
			}
		})
		if err != nil {
			m.Failed, m.Err = m.Failed+1, err
		}
	})
	return m
}

func (m *Monitor) ask(t Target) {
	m.Asked++
	by, err := ask(proxy.TCP, t.Addr, time.Second)
	if err == nil && t.Has != nil && !t.Has(by) {
		err = fmt.Errorf("answered by %v, which is none of its endpoints", by)
	}
	if err == nil {
		return
	}
	m.Failed++
	if m.Err == nil {
		m.Err = fmt.Errorf("ask %v: %w", t.Addr, err)
	}
}

// Stop ends the monitor; its fields may be read after that.
func (m *Monitor) Stop() {
	close(m.stop)
	m.running.Wait()
}
