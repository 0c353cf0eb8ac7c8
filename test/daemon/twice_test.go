package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/internal/proxy"
)

// TestTwoDaemons starts a second daemon while one runs, as by mistake or in a rollout. The second
// writes nothing, and each reports the other. When the first ends in any way, the second takes
// over. No connection fails.
func TestTwoDaemons(t *testing.T) {
	for _, c := range []struct {
		first, second string
		end           syscall.Signal
	}{
		{"nftables", "nftables", syscall.SIGTERM},
		{"nftables", "iptables", syscall.SIGKILL},
		{"iptables", "iptables", syscall.SIGKILL},
		{"iptables", "nftables", syscall.SIGTERM},
		{"userspace", "userspace", syscall.SIGTERM},
		{"userspace", "nftables", syscall.SIGTERM},
		{"ebpf", "ebpf", syscall.SIGTERM},
		{"ipvs", "ipvs", syscall.SIGTERM},
		{"ipvs", "nftables", syscall.SIGKILL},
	} {
		t.Run(fmt.Sprintf("%s then %s after %v", c.first, c.second, c.end), func(t *testing.T) {
			s := newSiteFor(t, c.first)
			s.write("web.yaml", service("web", clusterIP, podA))
			first := s.start(nil)
			s.await()
			open := s.openEcho()
			written := s.countWrites()
			alone := s.costOf(written, podB, podA)
			if alone == 0 && c.first != "userspace" { // whose rules do not name endpoints
				t.Fatal("writes are not counted")
			}

			load := s.load(2, clusterIP)
			second := s.start(nil, "--proxy-mode", c.second)
			eventually(t, "word of each other", func() bool {
				return strings.Contains(second.log(), fmt.Sprintf("serves this node, waiting until it ends; if this one shall not replace it, stop one of them\" pid=%d", first.Cmd.Process.Pid)) &&
					strings.Contains(first.log(), fmt.Sprintf("waits until this one ends\" pid=%d", second.Cmd.Process.Pid))
			})
			if !strings.Contains(second.log(), "mode "+c.first) {
				t.Error("the second does not say what the first is")
			}
			wait(t, 500*time.Millisecond) // for the second to write, if it would
			if n := len(written.taken()); n != 0 {
				t.Errorf("%d objects were written because of the second", n)
			}
			if n := s.costOf(written, podB, podA); n != alone {
				t.Errorf("%d objects were written for a change beside a second daemon, %d without", n, alone)
			}
			ended := time.Now()
			_ = first.Cmd.Process.Signal(c.end)
			eventually(t, "the second's first sync", func() bool { return !second.synced().IsZero() })
			took := second.synced().Sub(ended)
			s.write("web.yaml", service("web", clusterIP, podB))
			eventually(t, "a change after that", s.answers(clusterIP, podB))
			s.alive(open, "after the first was told to end")
			if c.first != c.second {
				_ = open.Close() // mode userspace carries it until then
			}
			if code := first.wait(); c.end == syscall.SIGTERM && code != 0 {
				t.Errorf("the first ended with %d", code)
			}
			made, failed := load()
			s.report(failed)
			s.isAsNew(c.second)
			reliability.Record(t, reliability.Result{
				Fault: "two daemons on one node: " + c.first + ", then " + c.second, Mode: c.second, Tried: 1,
				Requests: made, Failed: len(failed), Repairs: []time.Duration{took}, Note: "the repair is what the second took after " + c.end.String() + " of the first",
			})
		})
	}
}

// openEcho opens a connection through a Service.
func (s *site) openEcho() net.Conn {
	s.t.Helper()
	s.write("echo.yaml", strings.ReplaceAll(service("echo", secondIP, podA), "port: 8080", fmt.Sprintf("port: %d", s.echo(podA, 9090))))
	s.await()
	var open net.Conn
	eventually(s.t, "the connection", func() (ok bool) {
		c, err := s.client.Dial(s.t.Context(), proxy.TCP, client, secondIP)
		open = c
		return err == nil
	})
	s.t.Cleanup(func() { _ = open.Close() })
	s.alive(open, "at first")
	return open
}

// costOf replaces the Service's endpoint and returns how many objects were written.
func (s *site) costOf(w *writes, endpoints ...netip.Addr) int {
	s.t.Helper()
	w.taken()
	for _, e := range endpoints {
		s.write("web.yaml", service("web", clusterIP, e))
		eventually(s.t, "the change", s.answers(clusterIP, e))
	}
	s.await()
	return len(w.taken())
}
