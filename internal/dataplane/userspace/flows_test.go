package userspace_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/proxy"
)

// TestRelayed finds the connections and sessions of a client by the address that it
// connected to, with the endpoint of each, and no longer those that have ended.
func TestRelayed(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.answerUDP(other)
	n.serve(proxy.TCP, near)
	relayed := func(p proxy.Protocol, from netip.Addr, to netip.AddrPort) string {
		t.Helper()
		all, err := n.d.Relayed(t.Context(), p, from, to)
		n.must(err)
		return fmt.Sprint(all)
	}
	var want []string
	var open []net.Conn
	for range 2 {
		c := n.dial(proxy.TCP)
		n.must(says(c, "hello"))
		open = append(open, c)
		want = append(want, fmt.Sprintf("{%v %v}", c.LocalAddr(), near))
	}
	found, err := n.d.Relayed(t.Context(), proxy.TCP, client, vip)
	n.must(err)
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprint(f))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("connections %q, want %q", got, want)
	}
	for _, other := range []struct {
		p    proxy.Protocol
		from netip.Addr
		to   netip.AddrPort
	}{{proxy.UDP, client, vip}, {proxy.TCP, near.Addr(), vip}, {proxy.TCP, client, near}} {
		if got := relayed(other.p, other.from, other.to); got != "[]" {
			t.Errorf("%+v: %s", other, got)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	n.eventually("closed connections are forgotten", func() bool { return relayed(proxy.TCP, client, vip) == "[]" })
	n.serve(proxy.UDP, other)
	c := n.dial(proxy.UDP)
	n.ask(c)
	if got, want := relayed(proxy.UDP, client, vip), fmt.Sprintf("[{%v %v}]", c.LocalAddr(), other); got != want {
		t.Errorf("sessions %s, want %s", got, want)
	}
}
