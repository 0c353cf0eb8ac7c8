package lab

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/traffic"
)

// RequireRoot is called first by each test of what only root may do: it skips the test under
// -short, for root too, so that -short runs the same tests for everybody. Otherwise it fails the
// test of another user. It does not skip then: a kernel test that did not run has proven nothing.
func RequireRoot(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs root; left out by -short")
	}
	if os.Geteuid() != 0 {
		tb.Fatal("needs root: run as root, or under unshare -rn, or with -short, which leaves it out")
	}
}

// Namespace moves the calling test to a new network namespace, which ends with the test's thread.
// It begins with RequireRoot.
func Namespace(tb testing.TB) {
	tb.Helper()
	RequireRoot(tb)
	runtime.LockOSThread() // for good: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		tb.Fatalf("make a network namespace: %v", err)
	}
}

// Loopback brings up the loopback link of the calling thread's namespace, gives it addresses and
// returns it.
func Loopback(tb testing.TB, addrs ...netip.Addr) netlink.Link {
	tb.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	for _, a := range addrs {
		if err == nil {
			on := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: on})
		}
	}
	if err != nil {
		tb.Fatalf("bring up loopback: %v", err)
	}
	return lo
}

// Require fails the test if no lab can be created. It begins with RequireRoot.
func Require(tb testing.TB) {
	tb.Helper()
	RequireRoot(tb)
	h, err := newHost("probe", &traffic.Ports{})
	if err == nil {
		err = h.close()
	}
	if err != nil {
		tb.Fatalf("the lab needs network namespaces: %v", err)
	}
}

// ForTest creates a lab that is closed at the end of the test. It begins with Require.
func ForTest(tb testing.TB, c Config) *Lab {
	tb.Helper()
	Require(tb)
	l, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("close lab: %v", err)
		}
	})
	return l
}
