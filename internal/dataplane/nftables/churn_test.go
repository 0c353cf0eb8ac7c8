package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestNoFlowIsLostToACommit changes a Service from 20 endpoints to one and back in a loop,
// while new flows start. A commit between two lookups of a packet must not leave the
// packet without an endpoint.
func TestNoFlowIsLostToACommit(t *testing.T) {
	flows := 1_000_000
	if testing.Short() {
		flows = 50_000
	}
	for _, tt := range []struct {
		name     string
		affinity time.Duration
		flows    int
	}{{"plain", 0, flows}, {"affinity", time.Second, flows / 4}} {
		t.Run(tt.name, func(t *testing.T) {
			lab.Namespace(t)
			podsOnLoopback(t)
			d, _ := openKernel(t)
			row := func(n int) *proxy.ServicePort {
				sp := plainRow(0, n, 0)
				sp.Key.Protocol, sp.Affinity = proxy.UDP, tt.affinity
				return sp
			}
			s := plainState(0)
			s.Rows[row(20).Key] = row(20)
			proxytest.MustSync(t, d, s)
			churned := make(chan int)
			stop := make(chan struct{})
			go func() {
				defer close(churned)
				churned <- churn(t, d, row(20), row(1), stop)
			}()
			refused := sendFlows(t, row(1).Frontends[0].Addr, tt.flows)
			close(stop)
			changes := <-churned
			t.Logf("%d of %d new flows refused under %d changes", refused, tt.flows, changes)
			if refused > 0 {
				t.Errorf("%d of %d new flows refused", refused, tt.flows)
			}
			if changes < tt.flows/1000 {
				t.Errorf("only %d changes, too few to prove anything", changes)
			}
		})
	}
}

// churn applies one row and the other in turn until it is stopped, and returns the number of
// changes.
func churn(t *testing.T, d *Dataplane, a, b *proxy.ServicePort, stop <-chan struct{}) (changes int) {
	for {
		select {
		case <-stop:
			return changes
		default:
		}
		if err := proxytest.Apply(context.Background(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}}); err != nil {
			t.Error(err)
			return changes
		}
		a, b = b, a
		changes++
	}
}

// pods are the destinations of flows, and clients, which are among them, the sources.
var (
	pods    = netip.MustParsePrefix("10.0.0.0/8")
	clients = netip.MustParsePrefix("10.200.0.0/16")
)

// podsOnLoopback makes all addresses of pods local, adds routes to Services, and shortens
// the timeouts of connection tracking.
func podsOnLoopback(t *testing.T) {
	t.Helper()
	lo := lab.Loopback(t)
	for prefix, kind := range map[netip.Prefix]int{
		pods: unix.RTN_LOCAL, netip.MustParsePrefix("172.16.0.0/12"): unix.RTN_UNICAST,
	} {
		dst := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: kind, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			t.Fatalf("route %v: %v", prefix, err)
		}
	}
	for _, name := range []string{"udp_timeout", "udp_timeout_stream"} {
		if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+name, []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sendFlows sends the first packet of n new flows, and returns how many of them our rules
// refused, which the kernel reports to the sender immediately.
func sendFlows(t *testing.T, to netip.AddrPort, n int) (refused int) {
	t.Helper()
	sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	first := clients.Addr().As4()
	for sent, port := 0, 20_000; sent < n; port++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: port})
		}
		if err != nil {
			t.Fatal(fmt.Errorf("socket on port %d: %w", port, err))
		}
		for i := range 1 << 16 {
			if sent++; sent > n {
				break
			}
			from := &unix.Inet4Pktinfo{Spec_dst: [4]byte{first[0], first[1], byte(i >> 8), byte(i)}}
			switch _, err := unix.SendmsgN(fd, []byte("x"), unix.PktInfo4(from), sa, 0); {
			case errors.Is(err, unix.EPERM):
				refused++
			case err != nil:
				t.Fatalf("flow %d: %v", sent, err)
			}
		}
		unix.Close(fd)
	}
	return refused
}
