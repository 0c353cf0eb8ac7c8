package userspace_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// inspect compares the only row with what is in force.
func (n *testNode) inspect(s *proxy.State) (out proxy.Inspected) {
	n.Helper()
	what := proxy.Inspection{Row: s.Keys()[0], Client: client}
	err := n.lab.Node().Do(func() (err error) {
		out, err = n.d.Inspect(n.Context(), what)
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return out
}

// TestInspect finds no differences at first, and names what another process or the test itself
// broke.
func TestInspect(t *testing.T) {
	n := newNode(t, relaySettings())
	s := n.state(proxy.TCP, near)
	sync := func() {
		t.Helper()
		n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
	}
	want := func(when string, words ...string) {
		t.Helper()
		got := n.inspect(s)
		if len(got.Differences) != len(words) {
			t.Fatalf("%s: %+v; want %q", when, got, words)
		}
		for i, d := range got.Differences {
			if !strings.Contains(d.Object+": "+d.Want+", "+d.Have, words[i]) {
				t.Errorf("%s: %+v; want %q", when, d, words[i])
			}
		}
	}
	sync()
	want("as written")
	if got := n.inspect(s); got.Objects < 20 || got.Unread != "" {
		t.Errorf("%+v; want everything to be read", got)
	}

	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = netlink.FAMILY_V4, 10270, 10270
	n.must(n.lab.Node().Do(func() error { return netlink.RuleDel(rule) }))
	want("without the routing rule", "routing: ip rule add fwmark ")
	sync()
	want("after a Sync")

	n.d.ReplaceRow(s.Keys()[0])
	want("with another row", "row in the daemon's memory: 172.30.0.1:80 belongs to ")
	n.d.ReplaceRow(s.Keys()[0], s.Rows[s.Keys()[0]])
	want("with the row again")
	n.d.StopListening()
	want("with a socket that listens no more", "socket of the daemon: it listens on TCP port ")
}

// TestInspectRemembered tells which endpoint the process remembers a client for.
func TestInspectRemembered(t *testing.T) {
	n := newNode(t, relaySettings())
	s := n.state(proxy.TCP, near, other)
	sp := s.Rows[s.Keys()[0]]
	sp.Affinity = time.Hour
	n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
	if got := n.inspect(s); got.RememberedUnknown != "" || got.Remembered != (netip.AddrPort{}) {
		t.Errorf("a client that never came: %+v", got)
	}
	chosen := n.d.Choose(sp.Key, client)
	if got := n.inspect(s); got.RememberedUnknown != "" || got.Remembered != chosen {
		t.Errorf("remembered with %v, want %v", got.Remembered, chosen)
	}
}
