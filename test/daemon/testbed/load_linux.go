package testbed

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Gap is a time without a daemon, until its successor's first sync.
type Gap struct {
	From  time.Time
	Until func() time.Time // zero: it did not come to that
}

// Failure is a connection that failed.
type Failure struct {
	began, ended time.Time
	what         string
}

func (f Failure) String() string { return f.began.Format("15:04:05.000") + ": " + f.what }

// within reports whether the connection was under way in one of the gaps, in order.
func (f Failure) within(gaps []Gap) bool {
	for i := 0; i < len(gaps); i++ {
		from, until := gaps[i].From, gaps[i].Until()
		for ; until.IsZero() && i+1 < len(gaps); i++ {
			until = gaps[i+1].Until()
		}
		if !f.ended.Before(from) && (until.IsZero() || !f.began.After(until)) {
			return true
		}
	}
	return false
}

// Outside returns the failures of connections that were not under way in one of the gaps.
func Outside(failed []Failure, gaps ...Gap) []Failure {
	return slices.DeleteFunc(slices.Clone(failed), func(f Failure) bool { return f.within(gaps) })
}

// Report has failures fail the test.
func (b *Testbed) Report(failed []Failure) {
	b.T.Helper()
	for _, f := range failed[:min(len(failed), 5)] {
		b.T.Error(f)
	}
	if len(failed) > 5 {
		b.T.Errorf("and %d more connections failed", len(failed)-5)
	}
}

// Load makes connections from several clients until stop is called, which tells how it went.
func (b *Testbed) Load(clients int, to netip.AddrPort) (stop func() (made int, failed []Failure)) {
	var made atomic.Int64
	var mu sync.Mutex
	var failed []Failure
	var running sync.WaitGroup
	done := make(chan struct{})
	for range clients {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				began, patience := time.Now(), cmp.Or(b.Patience, 3*time.Second)
				ctx, cancel := context.WithTimeout(b.T.Context(), 2*traffic.Scaled(patience)) // also for who is connected
				seen, err := b.Client.Probe(ctx, []traffic.Flow{{Protocol: proxy.TCP, Src: ClientIP, Dst: to, Patience: patience}})
				cancel()
				if made.Add(1); err != nil || seen[0].Fate != traffic.Answered {
					mu.Lock()
					failed = append(failed, Failure{began, time.Now(), fmt.Sprintf("%v, error %v", seen, err)})
					mu.Unlock()
					Pause(b.T, 10*time.Millisecond) // who is refused at once would try thousands of times a second
				}
			}
		})
	}
	return func() (int, []Failure) {
		close(done)
		running.Wait()
		return int(made.Load()), failed
	}
}

// ReplaceEndpoints replaces the endpoint of the Service web continuously, and lets another Service
// come and go, until what it returns is called.
func (b *Testbed) ReplaceEndpoints() (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	guest := Service("guest", netip.MustParseAddrPort("172.30.0.30:80"), PodA, PodB)
	running.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			b.Write("web.yaml", Service("web", ClusterIP, []netip.Addr{PodA, PodB}[i%2]))
			text := ""
			if i%4 < 2 {
				text = guest
			}
			b.Write("guest.yaml", text)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
		b.Write("guest.yaml", guest) // an empty file leaves the last objects in force
	}
}
