package link

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSubnets asks the kernel about two links whose addresses have subnets, and a route within
// one of them that leads to the other.
func TestSubnets(t *testing.T) {
	runtime.LockOSThread() // its namespace ends with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
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
	gateway, err := netlink.ParseIPNet("10.2.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index["a"], Dst: gateway, Gw: netip.MustParseAddr("10.1.0.2").AsSlice()}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSubnets()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List()
	want := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}
	if slices.SortFunc(list, netip.Prefix.Compare); err != nil || !slices.Equal(list, want) {
		t.Errorf("subnets are %v, error %v; want %v", list, err, want)
	}
	for addr, link := range map[string]string{
		"10.1.2.3": "a", "10.1.0.9": "b", "fd00:1::2": "b", "10.1.0.1": "", "10.2.0.1": "", "192.0.2.1": "", "fd00:2::1": "",
	} {
		if got, err := s.LinkOf(netip.MustParseAddr(addr)); err != nil || got != index[link] {
			t.Errorf("%s is on link %d, error %v; want %d", addr, got, err, index[link])
		}
	}
}
