//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// measureDatapath measures the first packet of new flows to Services with session affinity,
// alternately with few endpoints and very many. Clients return, so most of them have a binding.
func measureDatapath(ctx context.Context, r *report) error {
	const few, many, rounds, flows = 5, 5_000, 20, 20_000
	if err := setUpLoopback(); err != nil {
		return err
	}
	s := state(0)
	s.Node.LocalPods.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	to := map[int]netip.AddrPort{}
	for i, n := range []int{few, many} {
		sp := service(i, i*16)
		sp.Key.Protocol, sp.Affinity, sp.Cluster = proxy.UDP, time.Hour, nil
		for e := range n {
			sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: address(10<<24, i<<20+e, 8080)})
		}
		s.Rows[sp.Key] = sp
		to[n] = sp.Frontends[0].Addr
	}
	_, _, stop, err := syncAndWatch(ctx, s)
	if err != nil {
		return err
	}
	took := map[int][]time.Duration{}
	for round := range rounds {
		for _, n := range []int{few, many} {
			each, err := sendFlows(to[n], 20_000+round, flows)
			if err != nil {
				return err
			}
			took[n] = append(took[n], each)
		}
	}
	f, m := median(took[few]), median(took[many])
	ratio := float64(m) / float64(f)
	r.add(fmt.Sprintf("first packet of a flow, session affinity: %d and %d endpoints", few, many),
		fmt.Sprintf("%v and %v, %.2fx", f, m, ratio), "within 1.2x", ratio <= 1.2)
	return stop()
}

// setUpLoopback makes all pod addresses local to the namespace and adds routes to Services. It
// shortens the UDP timeout of conntrack.
func setUpLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	for cidr, kind := range map[string]int{"10.0.0.0/8": unix.RTN_LOCAL, "172.16.0.0/12": unix.RTN_UNICAST} {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: kind, Scope: netlink.SCOPE_HOST}); err != nil {
			return fmt.Errorf("route %s: %w", cidr, err)
		}
	}
	return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("1"), 0o644)
}

// sendFlows sends the first packet of n new flows, each from another client, and returns the time
// per flow.
func sendFlows(to netip.AddrPort, port, n int) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return 0, fmt.Errorf("bind to port %d: %w", port, err)
	}
	sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	began := time.Now()
	for i := range n {
		from := &unix.Inet4Pktinfo{Spec_dst: [4]byte{10, 200, byte(i >> 8), byte(i)}}
		if _, err := unix.SendmsgN(fd, []byte("x"), unix.PktInfo4(from), sa, 0); err != nil {
			return 0, fmt.Errorf("send to %v: %w", to, err)
		}
	}
	return time.Since(began) / time.Duration(n), nil
}
