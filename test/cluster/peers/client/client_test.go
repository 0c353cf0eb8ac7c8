package client

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

const port, bulkPort = 8080, 8081

// TestClient asks a server directly, without a proxy.
func TestClient(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	pod, err := l.AddPod("pod", netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(pod.Addrs[0], port)
	tcp, err := pod.Listen(proxy.TCP, to)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := pod.Listen(proxy.UDP, to)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := pod.Sink(netip.AddrPortFrom(to.Addr(), bulkPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tcp.Close(), udp.Close(), sink.Close()); err != nil {
			t.Error(err)
		}
	})
	c, err := New(l.Node())
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Addr: to, Has: func(by netip.Addr) bool { return by == to.Addr() }}
	answers, err := c.Await(t.Context(), slices.Repeat([]Target{target}, 120)) // some of them after a hundred
	if err != nil || answers.Count != 120 || answers.Most.Before(answers.First) {
		t.Errorf("Await: got %+v, %v, want all answered", answers, err)
	}
	if _, err := c.Follow(t.Context(), to, to.Addr()); err != nil {
		t.Errorf("Follow: %v", err)
	}
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		d, err := c.Run(Burst{Protocol: p, To: []netip.AddrPort{to}, Loops: 2, For: 50 * time.Millisecond})
		if err != nil || d.Failed > 0 || len(d.Took) == 0 {
			t.Errorf("Run %v: got %d answers, %d failures, %v", p, len(d.Took), d.Failed, err)
		}
	}
	if rate, err := c.Bulk(netip.AddrPortFrom(to.Addr(), bulkPort), 50*time.Millisecond); err != nil || rate == 0 {
		t.Errorf("Bulk: got %v bytes/s, %v", rate, err)
	}
	failing(t, c, to)
}

// failing looks for what does not answer, or answers wrongly.
func failing(t *testing.T, c *Client, to netip.AddrPort) {
	t.Helper()
	nobody := Target{Addr: netip.AddrPortFrom(to.Addr(), 9)}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	answers, err := c.Await(ctx, []Target{{Addr: to}, nobody})
	if err != nil || answers.Count != 1 || !answers.Most.IsZero() || answers.First.IsZero() {
		t.Errorf("Await: got %+v, %v, want one answer of two", answers, err)
	}
	wrong := Target{Addr: to, Has: func(netip.Addr) bool { return false }}
	if _, err := c.Await(t.Context(), []Target{wrong}); err == nil {
		t.Error("Await: no error though the wrong endpoint answered")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	m := c.Monitor(ctx, []Target{nobody})
	if m.Failed == 0 || m.Failed != m.Asked || m.Err == nil {
		t.Errorf("Monitor: got %d failures of %d, %v, want all", m.Failed, m.Asked, m.Err)
	}
}
