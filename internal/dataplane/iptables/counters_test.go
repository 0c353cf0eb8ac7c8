package iptables

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy/proxytest"
)

// TestCountsLocalhost checks that connections to a NodePort are counted on loopback addresses,
// and not on other addresses.
func TestCountsLocalhost(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		endpoint := netip.MustParseAddrPort("10.0.0.1:8080")
		lab.Loopback(t, endpoint.Addr())
		ln, err := net.Listen("tcp", endpoint.String())
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		s := plainState(0)
		s.Node.LocalhostNodePorts = true
		sp := plainRow(1, 1, 0)
		sp.Cluster[0].Addr = endpoint
		s.Rows[sp.Key] = sp
		proxytest.MustSync(t, d, s)
		for i, tt := range []struct {
			to   netip.AddrPort
			want uint64
		}{
			{netip.AddrPortFrom(endpoint.Addr(), sp.Frontends[1].Addr.Port()), 0},
			{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), sp.Frontends[1].Addr.Port()), 1},
			{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), sp.Frontends[1].Addr.Port()), 2},
		} {
			c, err := net.Dial("tcp", tt.to.String())
			if err != nil {
				t.Fatalf("connection %d, to %v: %v", i, tt.to, err)
			}
			_ = c.Close()
			if n, err := d.packets(t.Context(), &localhostAccepted); n != tt.want || err != nil {
				t.Errorf("after connection %d, to %v: counted %d, error %v; want %d", i, tt.to, n, err, tt.want)
			}
		}
	})
}

// TestPacketsNeverDecrease has counters that are reset, as after rewriting a rule, and that
// cannot be read. The reported sum must not decrease.
func TestPacketsNeverDecrease(t *testing.T) {
	d, fake := faked()
	s := plainState(1)
	s.Node.LocalhostNodePorts = true
	proxytest.MustSync(t, d, s)
	broken := errors.New("broken")
	for i, tt := range []struct {
		invalid, localhost uint64
		fail               error
		wantInvalid        uint64
		wantLocalhost      uint64
	}{
		{3, 1, nil, 3, 1},
		{4, 1, nil, 4, 1},
		{1, 2, nil, 5, 2},
		{2, 9, broken, 5, 2},
		{2, 9, nil, 6, 9},
	} {
		fake.Count(invalidDropped.comment, tt.invalid)
		fake.Count(localhostAccepted.comment, tt.localhost)
		fake.Fail(tt.fail)
		for rule, want := range map[*countedRule]uint64{&invalidDropped: tt.wantInvalid, &localhostAccepted: tt.wantLocalhost} {
			if got, err := d.packets(t.Context(), rule); got != want || !errors.Is(err, tt.fail) {
				t.Errorf("step %d, %s: %d, error %v; want %d, %v", i, rule.comment, got, err, want, tt.fail)
			}
		}
	}
}
