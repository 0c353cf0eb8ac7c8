// Package client makes connections from inside a host and measures when they are answered, how many
// are, and how long that takes. It knows nothing of Services or proxies.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// timeout is the maximum time to wait for an answer.
const timeout = 250 * time.Millisecond

// Client makes connections from inside a host.
type Client struct{ host *lab.Host }

// New prepares a host for many connections by widening its range of source ports.
func New(h *lab.Host) (*Client, error) {
	err := h.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1024 65535"), 0)
	})
	if err != nil {
		return nil, fmt.Errorf("widen the ports of %s: %w", h.Name, err)
	}
	return &Client{host: h}, nil
}

// Target is a destination and the endpoints that may answer there.
type Target struct {
	Addr netip.AddrPort
	Has  func(endpoint netip.Addr) bool // nil means any
}

// ask makes one new connection to the target. It runs inside the host.
func (t Target) ask(timeout time.Duration) (by netip.Addr, err error) {
	a, err := traffic.Ask(proxy.TCP, t.Addr, timeout)
	if err != nil {
		err = fmt.Errorf("ask %v: %w", t.Addr, err)
	}
	return a.By.Addr(), err
}

// check returns an error if an endpoint may not answer for the target.
func (t Target) check(by netip.Addr) error {
	if t.Has != nil && !t.Has(by) {
		return fmt.Errorf("ask %v: answered by %v, which is not one of its endpoints", t.Addr, by)
	}
	return nil
}

// repeat asks the target until accept returns true or an error, and returns the time of that
// answer. The timeout of a connection and the pause after it are a hundredth of the time since
// began: short at first, so that a packet dropped before the rules exist does not hide that they
// do, and longer later, as a busy machine may need. It runs inside the host.
func (t Target) repeat(ctx context.Context, began time.Time, least, most time.Duration, accept func(by netip.Addr) (bool, error)) (time.Time, error) {
	const leastTimeout = 20 * time.Millisecond
	for ctx.Err() == nil {
		by, err := t.ask(min(max(leastTimeout, time.Since(began)/100), timeout))
		now := time.Now()
		if err == nil {
			if ok, err := accept(by); ok || err != nil {
				return now, err
			}
		}
		// For short times this is more exact than a timer of the Go runtime, and wakes no other
		// thread. An interrupted pause is just shorter.
		pause := unix.NsecToTimespec(min(max(least, now.Sub(began)/100), most).Nanoseconds())
		_ = unix.Nanosleep(&pause, nil)
	}
	return time.Time{}, context.Cause(ctx)
}

// Answers is when targets first answered.
type Answers struct {
	First time.Time // of any target; zero if none has answered
	Most  time.Time // of the last of a hundred random targets; zero if some have not answered
	Count int       // targets that have answered
}

// Await asks all targets, each until it has answered, and returns when that was. It ends early with
// ctx. An error means that a wrong endpoint answered, or is the cause of ctx.
//
// Asking thousands of targets takes time itself, which matters for a fast proxy only. So a hundred
// are asked before the rest.
func (c *Client) Await(ctx context.Context, targets []Target) (out Answers, err error) {
	targets = slices.Clone(targets)
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	began, few := time.Now(), min(100, len(targets))
	if err = c.await(ctx, began, targets[:few], &out); err == nil {
		out.Most = time.Now()
		err = c.await(ctx, began, targets[few:], &out)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil
	}
	return out, err
}

// await asks targets, each until it has answered.
func (c *Client) await(ctx context.Context, began time.Time, targets []Target, out *Answers) error {
	const threads, least, most = 4, 5 * time.Millisecond, time.Second // an immediate refusal must not keep a processor busy
	var mu sync.Mutex
	return c.loops(ctx, threads, func(ctx context.Context, w int) error {
		for _, t := range targets[len(targets)*w/threads : len(targets)*(w+1)/threads] {
			at, err := t.repeat(ctx, began, least, most, func(by netip.Addr) (bool, error) { return true, t.check(by) })
			if err != nil {
				return err
			}
			mu.Lock()
			if out.Count++; out.Count == 1 {
				out.First = at
			}
			mu.Unlock()
		}
		return nil
	})
}

// loops runs n loops concurrently inside the host, until one fails or all have ended.
func (c *Client) loops(ctx context.Context, n int, loop func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error { return c.host.Do(func() error { return loop(ctx, i) }) })
	}
	return g.Wait()
}

// Follow asks a target repeatedly until the wanted endpoint answers, and returns when that was. It
// asks less often over time: the result is exact to a few connections' time or one per cent, and
// asking costs little.
func (c *Client) Follow(ctx context.Context, to netip.AddrPort, want netip.Addr) (at time.Time, err error) {
	err = c.host.Do(func() error {
		at, err = Target{Addr: to}.repeat(ctx, time.Now(), 50*time.Microsecond, 20*time.Millisecond,
			func(by netip.Addr) (bool, error) { return by == want, nil })
		return err
	})
	return at, err
}

// Count counts connections and failures.
type Count struct {
	Asked, Failed int
	Err           error // of the first failure
}

// Add adds other connections.
func (n *Count) Add(other Count) {
	n.Asked += other.Asked
	n.Failed += other.Failed
	n.Err = cmp.Or(n.Err, other.Err)
}

func (n *Count) add(err error) {
	if n.Asked++; err != nil {
		n.Failed++
		n.Err = cmp.Or(n.Err, err)
	}
}

// Monitor asks targets in turn at a steady rate until ctx ends.
func (c *Client) Monitor(ctx context.Context, targets []Target) (n Count) {
	const period = 2 * time.Millisecond
	err := c.host.Do(func() error {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			t := targets[n.Asked%len(targets)]
			by, err := t.ask(time.Second)
			if err == nil {
				err = t.check(by)
			}
			n.add(err)
		}
	})
	if err != nil {
		n.add(err)
	}
	return n
}

// Burst describes sequential connections.
type Burst struct {
	Protocol proxy.Protocol
	To       []netip.AddrPort // round-robin
	Loops    int              // concurrent loops
	For      time.Duration
}

// Done is the result of a burst.
type Done struct {
	Count
	Took    []time.Duration // of each answered connection
	Elapsed time.Duration
}

// Run makes a burst of connections: open, one short answer, close.
func (c *Client) Run(b Burst) (Done, error) {
	each := make([]Done, b.Loops)
	began := time.Now()
	err := c.loops(context.Background(), b.Loops, func(_ context.Context, i int) error {
		each[i] = b.loop(began)
		return nil
	})
	all := Done{Elapsed: time.Since(began)}
	for _, one := range each {
		all.Took = append(all.Took, one.Took...)
		all.Add(one.Count)
	}
	return all, err
}

// loop runs one loop of the burst.
func (b Burst) loop(began time.Time) Done {
	const expected = 1 << 15
	d := Done{Took: make([]time.Duration, 0, expected)}
	for last := time.Now(); last.Sub(began) < b.For; {
		_, err := traffic.Ask(b.Protocol, b.To[d.Asked%len(b.To)], timeout)
		now := time.Now()
		if d.add(err); err == nil {
			d.Took = append(d.Took, now.Sub(last))
		}
		last = now
	}
	return d
}

// Bulk sends data over one connection for a time and returns the bytes per second.
func (c *Client) Bulk(to netip.AddrPort, d time.Duration) (rate float64, err error) {
	err = c.host.Do(func() error {
		fd, err := traffic.Connect(proxy.TCP, to, time.Second)
		if err != nil {
			return fmt.Errorf("connect to %v: %w", to, err)
		}
		defer func() { _ = unix.Close(fd) }()
		buf := make([]byte, 256<<10)
		began, sent := time.Now(), 0
		for time.Since(began) < d {
			n, err := unix.Write(fd, buf)
			if err != nil && err != unix.EINTR {
				return fmt.Errorf("send to %v: %w", to, err)
			}
			sent += max(0, n)
		}
		rate = float64(sent) / time.Since(began).Seconds()
		return nil
	})
	return rate, err
}
