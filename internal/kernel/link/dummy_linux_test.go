package link_test

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/link"
	"sluice/internal/kernel/link/linktest"
)

func TestFakeDummy(t *testing.T) { dummyContract(t, &linktest.Dummy{}) }

// openDummy opens a link in a namespace of the test's own.
func openDummy(t *testing.T) *link.Dummy {
	t.Helper()
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (run as root, or under unshare -rn): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
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
	if err := d.Delete(); err != nil {
		t.Fatal(err)
	}
	dummyContract(t, d)
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
