package daemon

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/churn"
	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// kills is how often a daemon is killed in each mode.
var kills = flag.Int("kills", 25, "kill a daemon so `OFTEN` in each mode, at random moments")

// TestKills kills daemons at random moments of their start, their first sync and
// what follows, while the endpoint of one Service is replaced without end, another
// Service comes and goes, and connections are made all the time. Whatever was written by
// then, no connection may fail and an open one stays open; the next daemon makes
// all of it right. In mode userspace connections are the daemon's, and end with it: there
// none may fail that was not under way while there was no daemon.
func TestKills(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			s.write("web.yaml", service("web", clusterIP, podA))
			d := s.start(nil)
			s.await()
			open := s.openEcho()
			load := s.load(4, clusterIP)
			change := s.replaceEndpoints()
			var gaps []gap
			for range *kills {
				wait(t, rand.N(traffic.Scaled(300*time.Millisecond)))
				gaps = append(gaps, gap{from: time.Now()})
				d.end(syscall.SIGKILL)
				d = s.start(nil)
				gaps[len(gaps)-1].until = d.synced
			}
			change()
			s.write("web.yaml", service("web", clusterIP, podB))
			eventually(t, "what was written last", s.answers(clusterIP, podB))
			made, failed := load()
			if made < *kills {
				t.Error("there was hardly a connection")
			}
			if mode == "userspace" {
				s.report(outside(failed, gaps...))
			} else {
				s.report(failed)
				s.alive(open, "after the last kill")
			}
			s.isAsNew(mode)
			r := reliability.Result{Fault: "daemon killed (SIGKILL)", Mode: mode, Tried: *kills, Requests: made, Failed: len(failed)}
			if mode == "userspace" {
				r.Note = "the daemon carries the connections: all that failed were under way while none ran"
			}
			reliability.Record(t, r)
		})
	}
}

// wait lets time pass.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// gap is a time without a daemon, until its successor's first sync.
type gap struct {
	from  time.Time
	until func() time.Time // zero: it did not come to that
}

// failure is a connection that failed.
type failure struct {
	began, ended time.Time
	what         string
}

func (f failure) String() string { return f.began.Format("15:04:05.000") + ": " + f.what }

// within reports whether the connection was under way in one of the gaps, in order.
func (f failure) within(gaps []gap) bool {
	for i := 0; i < len(gaps); i++ {
		from, until := gaps[i].from, gaps[i].until()
		for ; until.IsZero() && i+1 < len(gaps); i++ {
			until = gaps[i+1].until()
		}
		if !f.ended.Before(from) && (until.IsZero() || !f.began.After(until)) {
			return true
		}
	}
	return false
}

// outside returns the failures of connections that were not under way in one of the gaps.
func outside(failed []failure, gaps ...gap) []failure {
	return slices.DeleteFunc(slices.Clone(failed), func(f failure) bool { return f.within(gaps) })
}

// report has failures fail the test.
func (s *site) report(failed []failure) {
	s.t.Helper()
	for _, f := range failed[:min(len(failed), 5)] {
		s.t.Error(f)
	}
	if len(failed) > 5 {
		s.t.Errorf("and %d more connections failed", len(failed)-5)
	}
}

// isAsNew waits until the kernel is as a new daemon of a mode would make it: a file that
// is empty is not believed at once.
func (s *site) isAsNew(mode string) {
	s.t.Helper()
	if mode == legacy {
		mode = "iptables"
	}
	flags := append(s.settings(), "--proxy-mode", mode)
	if i := slices.Index(flags, "--cgroup-root"); i >= 0 { // which a rendering does not have
		flags = slices.Delete(flags, i, i+2)
	}
	program, err := binary()
	if err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "what a new daemon would make", func() bool {
		err := churn.Compare(s.t.Context(), s.lab.Node(), program, flags...)
		if err != nil {
			s.t.Log(err)
		}
		return err == nil
	})
}

// load makes connections until stop is called, which tells how it went.
func (s *site) load(clients int, to netip.AddrPort) (stop func() (made int, failed []failure)) {
	var made atomic.Int64
	var mu sync.Mutex
	var failed []failure
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
				began, patience := time.Now(), cmp.Or(s.patience, 3*time.Second)
				ctx, cancel := context.WithTimeout(s.t.Context(), 2*traffic.Scaled(patience)) // also for who is connected
				seen, err := s.client.Probe(ctx, []traffic.Flow{{Protocol: proxy.TCP, Src: client, Dst: to, Patience: patience}})
				cancel()
				if made.Add(1); err != nil || seen[0].Fate != traffic.Answered {
					mu.Lock()
					failed = append(failed, failure{began, time.Now(), fmt.Sprintf("%v, error %v", seen, err)})
					mu.Unlock()
					wait(s.t, 10*time.Millisecond) // who is refused at once would try thousands of times a second
				}
			}
		})
	}
	return func() (int, []failure) {
		close(done)
		running.Wait()
		return int(made.Load()), failed
	}
}

// replaceEndpoints replaces the endpoint of a Service, and lets another one come and go, until
// what it returns is called.
func (s *site) replaceEndpoints() (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	guest := service("guest", netip.MustParseAddrPort("172.30.0.30:80"), podA, podB)
	running.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			s.write("web.yaml", service("web", clusterIP, []netip.Addr{podA, podB}[i%2]))
			text := ""
			if i%4 < 2 {
				text = guest
			}
			s.write("guest.yaml", text)
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
		s.write("guest.yaml", guest) // an empty file leaves the last objects in force
	}
}
