package link_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/link/linktest"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is what the contract is about.
type host interface {
	List() ([]netip.Addr, error)
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// bench is a host and a hand that changes its addresses.
type bench struct {
	host
	give, take func(netip.Addr)
}

func TestFake(t *testing.T) {
	f := &linktest.Fake{}
	has := []netip.Addr{}
	contract(t, bench{
		host: f,
		give: func(a netip.Addr) { has = append(has, a); f.Set(has...) },
		take: func(a netip.Addr) {
			has = slices.DeleteFunc(slices.Clone(has), func(b netip.Addr) bool { return a == b })
			f.Set(has...)
		},
	})
}

// namespace has the test in a network namespace of its own, and returns its loopback.
func namespace(t *testing.T) netlink.Link {
	t.Helper()
	lab.Namespace(t)
	return lab.Loopback(t)
}

func TestKernel(t *testing.T) {
	lo := namespace(t)
	change := func(do func(netlink.Link, *netlink.Addr) error) func(netip.Addr) {
		return func(a netip.Addr) {
			t.Helper()
			on := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
			if err := do(lo, on); err != nil {
				t.Fatal(err)
			}
		}
	}
	contract(t, bench{host: link.Conn{}, give: change(netlink.AddrAdd), take: change(netlink.AddrDel)})
}

// TestOccupied checks that addresses which are this host's without being its own, so to
// speak, are found: broadcast and anycast ones.
func TestOccupied(t *testing.T) {
	lo := namespace(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"198.51.100.7/24", "2001:db8:1::7/64"} {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(lo, a); err != nil {
			t.Fatal(err)
		}
	}
	want := []netip.Addr{
		netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("198.51.100.255"),
		netip.MustParseAddr("2001:db8:1::7"), netip.MustParseAddr("2001:db8:1::"),
	}
	for end := time.Now().Add(10 * time.Second); ; { // the kernel joins the anycast address in the background
		got, err := link.Conn{}.Occupied()
		missing := slices.DeleteFunc(slices.Clone(want), func(a netip.Addr) bool { return slices.Contains(got, a) })
		if err != nil || len(missing) > 0 && time.Now().After(end) {
			t.Fatalf("%v are missing in %v, error %v", missing, got, err)
		}
		if len(missing) == 0 {
			return
		}
	}
}

// contract holds what both promise.
func contract(t *testing.T, b bench) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	wantHas(t, b, four, false)
	b.give(four)
	wantHas(t, b, four, true)

	ctx, stop := context.WithCancel(t.Context())
	changed, err := b.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b.give(six)
	wantToken(t, changed)
	wantHas(t, b, six, true)
	b.take(four)
	wantToken(t, changed)
	wantHas(t, b, four, false)
	wantHas(t, b, six, true)
	stop()
	for deadline := time.After(10 * time.Second); ; {
		select {
		case _, open := <-changed:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the watch goes on after its context")
		}
	}
}

func wantHas(t *testing.T, h host, a netip.Addr, want bool) {
	t.Helper()
	list, err := h.List()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(list, a) != want {
		t.Errorf("addresses %v; want %v in it: %t", list, a, want)
	}
	if b, ok := h.(bench); ok {
		h = b.host
	}
	if c, ok := h.(link.Conn); ok {
		if on, err := c.Local(a); (on == "lo") != want || err != nil {
			t.Errorf("%v is on link %q, error %v; want lo: %t", a, on, err, want)
		}
	}
}

func wantToken(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case _, open := <-changed:
		if !open {
			t.Fatal("the watch ended")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was told of a change")
	}
}

// TestLocalPrefixes has addresses, what local routes say, and nothing of the table where
// another program has everything be local that it marks.
func TestLocalPrefixes(t *testing.T) {
	lo := namespace(t)
	add := func(prefix string, table int) {
		t.Helper()
		_, dst, _ := net.ParseCIDR(prefix)
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatalf("add a route to %s: %v", prefix, err)
		}
	}
	add("198.51.100.128/25", unix.RT_TABLE_LOCAL)
	add("2001:db8:1::/64", unix.RT_TABLE_LOCAL)
	add("0.0.0.0/0", 100)
	list, err := link.Conn{}.LocalPrefixes()
	if err != nil {
		t.Fatal(err)
	}
	got := proxy.Outermost(list)
	want := []netip.Prefix{}
	for _, p := range []string{"127.0.0.0/8", "198.51.100.128/25", "::1/128", "2001:db8:1::/64"} {
		want = append(want, netip.MustParsePrefix(p))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

// TestTentativeAddressesAreLeftOut asks for duplicate detection on a link where
// it takes its time.
func TestTentativeAddressesAreLeftOut(t *testing.T) {
	namespace(t)
	// A link that is down cannot ask its neighbours, so the address stays tentative.
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr("2001:db8::1")
	if err := netlink.AddrAdd(pair, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}}); err != nil {
		t.Fatal(err)
	}
	wantHas(t, link.Conn{}, a, false)
}
