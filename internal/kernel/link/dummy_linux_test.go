package link_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/link"
	"sluice/internal/kernel/link/linktest"
)

func TestFakeDummy(t *testing.T) { dummyContract(t, &linktest.Dummy{}) }

// openDummy opens a link in a namespace of the test's own.
func openDummy(t *testing.T) *link.Dummy {
	t.Helper()
	namespace(t)
	d, err := link.OpenDummy("kube-ipvs0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestKernelDummy(t *testing.T) {
	d := openDummy(t)
	if err := d.Create(); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no dummy links (module dummy)")
	} else if err != nil {
		t.Fatal(err)
	}
	wantNoRoute(t, d)
	wantOthersRoute(t, d)
	wantOthersAddress(t, d)
	if err := d.Delete(); err != nil {
		t.Fatal(err)
	}
	dummyContract(t, d)
}

// wantNoRoute has a route over the link not be taken for an address of it.
func wantNoRoute(t *testing.T, d *link.Dummy) {
	t.Helper()
	l, err := netlink.LinkByName("kube-ipvs0")
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err == nil {
		to := &net.IPNet{IP: net.IPv4(198, 51, 100, 0).To4(), Mask: net.CIDRMask(24, 32)}
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
	}
	if err != nil {
		t.Fatal(err)
	}
	if has, err := d.Has(netip.MustParseAddr("198.51.100.1")); has || err != nil {
		t.Errorf("what a route leads to: %t, error %v", has, err)
	}
}

// wantOthersRoute has a local route that somebody added neither be listed nor be removed.
func wantOthersRoute(t *testing.T, d *link.Dummy) {
	t.Helper()
	l, err := netlink.LinkByName("kube-ipvs0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddr("198.51.100.1")
	route := &netlink.Route{
		LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(32, 32)},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: unix.RTPROT_STATIC,
	}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	wantListed(t, d, nil, nil)
	if err := d.Remove(to); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("remove an address that has another's route: %v", err)
	}
	if err := netlink.RouteDel(route); err != nil {
		t.Errorf("another's route: %v", err)
	}
}

// wantOthersAddress has an address of a network that somebody added not be listed.
func wantOthersAddress(t *testing.T, d *link.Dummy) {
	t.Helper()
	l, err := netlink.LinkByName("kube-ipvs0")
	if err == nil {
		err = netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 1).To4(), Mask: net.CIDRMask(24, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	wantListed(t, d, nil, nil)
}

// TestOtherLinkOfTheName is neither used nor removed.
func TestOtherLinkOfTheName(t *testing.T) {
	d := openDummy(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0"}, PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	want := "link kube-ipvs0 is not a dummy link but of type veth: rename or delete it"
	if _, err := d.Find(); !errors.Is(err, link.ErrNotDummy) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	a := netip.MustParseAddr("192.0.2.1")
	for _, err := range []error{d.Route(a)[a], d.Add(a)[a], d.Remove(a)} {
		if !errors.Is(err, unix.ENODEV) {
			t.Errorf("error %v, want %v", err, unix.ENODEV)
		}
	}
}

// wantListed expects addresses of the link, and some that are only routed to it.
func wantListed(t *testing.T, d link.Holder, on, routed []netip.Addr) {
	t.Helper()
	gotOn, gotRouted, err := d.List()
	for _, l := range [][]netip.Addr{gotOn, gotRouted} {
		slices.SortFunc(l, netip.Addr.Compare)
	}
	if !slices.Equal(gotOn, on) || !slices.Equal(gotRouted, routed) || err != nil {
		t.Errorf("addresses %v, routes %v, error %v; want %v and %v", gotOn, gotRouted, err, on, routed)
	}
}

// dummyContract holds what both promise.
func dummyContract(t *testing.T, d link.Holder) {
	if _, err := d.Find(); !errors.Is(err, link.ErrNoLink) {
		t.Fatalf("error %v, want %v", err, link.ErrNoLink)
	}
	if err := d.Create(); err != nil {
		t.Fatal(err)
	}
	if err := d.SetNote(link.Note{"net/ipv4/x": "1", "y": "2"}); err != nil {
		t.Error(err)
	}
	if note, err := d.Find(); len(note) != 2 || note["net/ipv4/x"] != "1" || err != nil {
		t.Errorf("note %v, error %v", note, err)
	}
	add := func(a netip.Addr) error { return d.Add(a)[a] }
	route := func(a netip.Addr) error { return d.Route(a)[a] }
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	local, local6 := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fe80::5")
	for i, step := range []struct {
		do         func(netip.Addr) error
		a          netip.Addr
		err        error
		on, routed []netip.Addr
	}{
		{add, four, nil, []netip.Addr{four}, nil},
		{add, six, nil, []netip.Addr{four, six}, nil},
		{add, six, nil, []netip.Addr{four, six}, nil},
		{route, four, nil, []netip.Addr{four, six}, nil},
		{d.Remove, four, nil, []netip.Addr{six}, nil},
		{d.Remove, four, unix.EADDRNOTAVAIL, []netip.Addr{six}, nil},
		{route, four, nil, []netip.Addr{six}, []netip.Addr{four}},
		{route, four, nil, []netip.Addr{six}, []netip.Addr{four}},
		{d.Remove, four, nil, []netip.Addr{six}, nil},
		{route, four, nil, []netip.Addr{six}, []netip.Addr{four}},
		{add, four, nil, []netip.Addr{four, six}, nil},
		{d.Remove, four, nil, []netip.Addr{six}, nil},
		{d.Remove, six, nil, nil, nil},
		{route, local, nil, nil, []netip.Addr{local}},
		{route, four, nil, nil, []netip.Addr{local, four}},
		{add, four, nil, []netip.Addr{four}, []netip.Addr{local}},
		{d.Remove, four, nil, nil, nil}, // and the route goes with the last address
		{add, local, nil, []netip.Addr{local}, nil},
		{add, local6, nil, []netip.Addr{local, local6}, nil},
		{d.Remove, local6, nil, []netip.Addr{local}, nil},
		{d.Remove, local, nil, nil, nil},
		{route, six, nil, []netip.Addr{six}, nil},
	} {
		if err := step.do(step.a); !errors.Is(err, step.err) {
			t.Errorf("step %d: error %v, want %v", i, err, step.err)
		}
		wantListed(t, d, step.on, step.routed)
		for _, a := range []netip.Addr{four, six, local, local6} {
			if has, err := d.Has(a); has != slices.Contains(append(step.routed, step.on...), a) || err != nil {
				t.Errorf("step %d: %v: %t, error %v", i, a, has, err)
			}
		}
	}
	five, seven := netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::7")
	if refused := d.Route(five, four, seven); len(refused) != 0 {
		t.Errorf("refused %v", refused)
	}
	if refused := d.Add(five, six, seven); len(refused) != 0 {
		t.Errorf("refused %v", refused)
	}
	wantListed(t, d, []netip.Addr{five, six, seven}, []netip.Addr{four})
	if err := d.Delete(); err != nil {
		t.Error(err)
	}
	if _, err := d.Find(); !errors.Is(err, link.ErrNoLink) {
		t.Errorf("after its removal: error %v", err)
	}
}
