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
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, step := range []struct {
		do   func(netip.Addr) error
		a    netip.Addr
		err  error
		want []netip.Addr
	}{
		{add, four, nil, []netip.Addr{four}},
		{add, six, nil, []netip.Addr{four, six}},
		{add, six, unix.EEXIST, []netip.Addr{four, six}},
		{d.Remove, four, nil, []netip.Addr{six}},
		{d.Remove, four, unix.EADDRNOTAVAIL, []netip.Addr{six}},
	} {
		if err := step.do(step.a); !errors.Is(err, step.err) {
			t.Errorf("error %v, want %v", err, step.err)
		}
		got, err := d.List()
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, step.want) || err != nil {
			t.Errorf("addresses %v, error %v; want %v", got, err, step.want)
		}
		for _, a := range []netip.Addr{four, six} {
			if has, err := d.Has(a); has != slices.Contains(step.want, a) || err != nil {
				t.Errorf("%v: %t, error %v; addresses %v", a, has, err, step.want)
			}
		}
	}
	five, seven := netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::7")
	if refused := d.Add(five, six, seven); len(refused) != 1 || !errors.Is(refused[six], unix.EEXIST) {
		t.Errorf("refused %v, want %v for %v alone", refused, unix.EEXIST, six)
	}
	if got, err := d.List(); len(got) != 3 || !slices.Contains(got, five) || !slices.Contains(got, seven) || err != nil {
		t.Errorf("addresses %v, error %v; want the new ones among them", got, err)
	}
	if err := d.Delete(); err != nil {
		t.Error(err)
	}
	if _, err := d.Find(); !errors.Is(err, link.ErrNoLink) {
		t.Errorf("after its removal: error %v", err)
	}
}
