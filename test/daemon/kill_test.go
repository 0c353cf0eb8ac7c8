package daemon

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
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
// all of it right.
func TestKills(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "ebpf"} {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			echo := strings.ReplaceAll(service("echo", secondIP, podA), "port: 8080", fmt.Sprintf("port: %d", s.echo(podA, 9090)))
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("echo.yaml", echo)
			d := s.start(nil)
			eventually(t, "the Service", s.answers(clusterIP, podA))
			open, err := s.client.Dial(t.Context(), proxy.TCP, client, secondIP)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			load := s.load(4, clusterIP)
			change := s.replaceEndpoints()
			for range *kills {
				wait(t, rand.N(300*time.Millisecond))
				d.end(syscall.SIGKILL)
				d = s.start(nil)
			}
			change()
			s.write("web.yaml", service("web", clusterIP, podB))
			eventually(t, "what was written last", s.answers(clusterIP, podB))
			made, failed := load()
			reliability.Record(t, reliability.Result{
				Fault: "daemon killed (SIGKILL)", Mode: mode, Tried: *kills, Requests: made, Failed: len(failed),
			})
			if made < *kills {
				t.Error("there was hardly a connection")
			}
			for _, f := range failed[:min(len(failed), 5)] {
				t.Error(f)
			}
			s.alive(open, "after the last kill")
			flags := s.settings()
			if i := slices.Index(flags, "--cgroup-root"); i >= 0 { // which a rendering does not have
				flags = slices.Delete(flags, i, i+2)
			}
			program, err := binary()
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "what a new daemon would make", func() bool { // a file that is empty is not believed at once
				err := churn.Compare(t.Context(), s.lab.Node(), program, flags...)
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
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

// load makes connections until stop is called, which tells how it went.
func (s *site) load(clients int, to netip.AddrPort) (stop func() (made int, failed []string)) {
	var made atomic.Int64
	var mu sync.Mutex
	var failed []string
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
				at := time.Now()
				seen, err := s.client.Probe(s.t.Context(), []traffic.Flow{{Protocol: proxy.TCP, Src: client, Dst: to, Patience: 3 * time.Second}})
				if made.Add(1); err != nil || seen[0].Fate != traffic.Answered {
					mu.Lock()
					failed = append(failed, fmt.Sprintf("%s: %v, error %v", at.Format("15:04:05.000"), seen, err))
					mu.Unlock()
				}
			}
		})
	}
	return func() (int, []string) {
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
	running.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			s.write("web.yaml", service("web", clusterIP, []netip.Addr{podA, podB}[i%2]))
			text := ""
			if i%4 < 2 {
				text = service("guest", netip.MustParseAddrPort("172.30.0.30:80"), podA, podB)
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
	}
}
