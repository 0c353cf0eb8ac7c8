package traffic

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// chunk is how much is written or read at once in bulk.
const chunk = 256 << 10

// Burst says which connections to make, one after the other.
type Burst struct {
	Protocol proxy.Protocol
	To       []netip.AddrPort // in turn
	Loops    int              // that many at a time
	For      time.Duration
}

// Done is what became of a burst.
type Done struct {
	Took    []time.Duration // of each connection that was answered
	Failed  int
	Err     error // of the first that failed
	Elapsed time.Duration
}

// Run makes a burst of connections: open, one short answer, close.
func (c *Client) Run(b Burst) (Done, error) {
	var mu sync.Mutex
	var all Done
	var failed error
	var running sync.WaitGroup
	began := time.Now()
	for range b.Loops {
		running.Go(func() {
			var one Done
			err := c.host.Do(func() error {
				one = b.loop(began)
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			all.Took = append(all.Took, one.Took...)
			all.Failed += one.Failed
			all.Err = cmp.Or(all.Err, one.Err)
			if err != nil {
				failed = err
			}
		})
	}
	running.Wait()
	all.Elapsed = time.Since(began)
	return all, failed
}

// loop is one of the burst's loops.
func (b Burst) loop(began time.Time) Done {
	const expected = 1 << 15
	d := Done{Took: make([]time.Duration, 0, expected)}
	last := time.Now()
	for i := 0; last.Sub(began) < b.For; i++ {
		_, err := ask(b.Protocol, b.To[i%len(b.To)], patience)
		now := time.Now()
		if err != nil {
			d.Failed++
			d.Err = cmp.Or(d.Err, err)
		} else {
			d.Took = append(d.Took, now.Sub(last))
		}
		last = now
	}
	return d
}

// Bulk sends as much as it can over one connection and returns the bytes per
// second.
func (c *Client) Bulk(to netip.AddrPort, d time.Duration) (float64, error) {
	var rate float64
	err := c.host.Do(func() error {
		fd, err := open(unix.SOCK_STREAM, time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := connect(fd, to); err != nil {
			return fmt.Errorf("connect to %v: %w", to, err)
		}
		buf := make([]byte, chunk)
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
