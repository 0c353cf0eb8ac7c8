package iptables

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice/internal/kernel/nfacct"
)

// TestCountsLocalhost wants a connection to a NodePort on a loopback address to
// be counted, and one to it on another address not.
func TestCountsLocalhost(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		endpoint := netip.MustParseAddrPort("10.0.0.1:8080")
		loopback(t, endpoint.Addr())
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
		if err := d.Sync(t.Context(), s); err != nil {
			t.Fatal(err)
		}
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
			if n, err := d.Packets(LocalhostAccepted); n != tt.want || err != nil {
				t.Errorf("after connection %d, to %v: counted %d, error %v; want %d", i, tt.to, n, err, tt.want)
			}
		}
	})
}

// TestWithoutCounters has programs that cannot count: rules do without.
func TestWithoutCounters(t *testing.T) {
	d, fake := faked()
	d.counters = nfacct.NewFake()
	fake.Lack("-m nfacct")
	if err := d.Sync(t.Context(), plainState(3)); err != nil {
		t.Error(err)
	}
	if d.families[0].counts {
		t.Error("packets are to be counted though the kernel cannot")
	}
}

// loopback brings up the loopback link of the test's namespace, with an address
// more.
func loopback(t *testing.T, a netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
}
