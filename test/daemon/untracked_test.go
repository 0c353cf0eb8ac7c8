package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// TestUntracked has the daemon not track connections between pods: it begins by itself,
// a connection outlasts a kill, a start without the flag and the clean-up, and what is
// not tracked leaves nothing behind.
func TestUntracked(t *testing.T) {
	s := newSiteFor(t, "ebpf")
	s.write("echo.yaml", strings.ReplaceAll(service("echo", clusterIP, podA), "port: 8080", fmt.Sprintf("port: %d", s.echo(podA, 9090))))
	before := s.ruleset()
	const flag, pods = "--ebpf-untracked-cidrs", "10.0.0.0/8"
	d := s.start(nil, flag, pods)
	eventually(t, "connections between pods that are not tracked", s.untracked("1"))

	var open net.Conn
	eventually(t, "a connection that is not tracked", func() bool { // the first ones of a pod go by the rules
		if err := s.lab.Node().FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		open = s.dialEcho()
		s.alive(open, "at first")
		return s.tracked() == 0
	})
	if strings.Contains(d.log(), "Repaired") {
		t.Errorf("what begins is called a repair:\n%s", d.log())
	}
	d.end(syscall.SIGKILL)
	s.alive(open, "after a kill")
	d = s.start(nil, flag, pods)
	eventually(t, "the same after a restart", s.untracked("1"))
	s.alive(open, "after a restart")

	d.end(syscall.SIGTERM)
	d = s.start(nil)
	eventually(t, "connections that are tracked again", s.untracked("0"))
	s.alive(open, "that is tracked from now on")
	s.alive(s.dialEcho(), "that was always tracked")
	if s.tracked() == 0 {
		t.Error("no connection between pods is tracked")
	}

	d.end(syscall.SIGTERM)
	eventually(t, "not tracked once more", func() bool {
		if err := s.lab.Node().FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		d = s.start(nil, flag, pods)
		defer d.end(syscall.SIGTERM)
		s.await()
		return within(2*time.Second, s.untracked("1")) // it looks for tracked connections first
	})
	if code := s.start(nil, "--cleanup").wait(); code != 0 {
		t.Errorf("--cleanup: exit %d", code)
	}
	if diff := cmp.Diff(before, s.ruleset()); diff != "" {
		t.Errorf("the host is not as it was (-before +after):\n%s", diff)
	}
	s.alive(open, "after the clean-up")
}

// untracked reports whether the daemon's metric has a value.
func (s *site) untracked(value string) func() bool {
	return func() bool {
		_, body, err := s.get("http://127.0.0.1:10249/metrics")
		return err == nil && strings.Contains(body, "\nkubeproxy_ebpf_untracked "+value+"\n")
	}
}

// dialEcho connects a pod to the Service.
func (s *site) dialEcho() net.Conn {
	s.t.Helper()
	c, err := s.client.Dial(s.t.Context(), proxy.TCP, netip.Addr{}, clusterIP)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// tracked counts the connections to the endpoint that the node tracks.
func (s *site) tracked() (n int) {
	s.t.Helper()
	if err := s.lab.Node().Do(func() error {
		c, err := ct.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		flows, err := c.Dump(s.t.Context(), ct.Filter{Protocol: unix.IPPROTO_TCP}, func(f *ct.Flow) bool { return f.Reply.Src.Addr() == podA })
		n = len(flows)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	return n
}
