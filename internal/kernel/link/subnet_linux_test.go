package link

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
)

// TestSubnets asks the kernel about two links whose addresses have subnets, and a route within
// one of them that leads to the other.
func TestSubnets(t *testing.T) {
	lab.Namespace(t)
	index := map[string]int{}
	for name, addr := range map[string]string{"a": "10.1.0.1/16", "b": "fd00:1::1/64"} {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		index[name] = l.Attrs().Index
	}
	single, err := netlink.ParseIPNet("10.1.0.9/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index["b"], Dst: single, Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	gateway, err := netlink.ParseIPNet("10.1.9.0/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index["a"], Dst: gateway, Gw: netip.MustParseAddr("10.1.0.2").AsSlice()}); err != nil {
		t.Fatal(err)
	}
	r, err := OpenSubnetReader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"10.1.2.3", "10.1.255.9", true},
		{"fd00:1::2", "fd00:1::3", true},
		{"10.1.2.3", "10.1.0.9", false},  // its own route leads to another link
		{"10.1.2.3", "10.1.9.1", false},  // behind a gateway
		{"10.1.2.3", "10.2.0.1", false},  // of no subnet
		{"10.2.0.1", "10.2.0.2", false},  // nor are these
		{"10.1.2.3", "fd00:1::2", false}, // of two families
		{"192.0.2.1", "192.0.2.2", false},
	} {
		if got := s.Share(netip.MustParseAddr(tt.a), netip.MustParseAddr(tt.b)); got != tt.want {
			t.Errorf("%s and %s share a subnet: %t, want %t", tt.a, tt.b, got, tt.want)
		}
	}
}
