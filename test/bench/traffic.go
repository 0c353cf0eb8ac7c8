//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
	"sluice/internal/traffic"
)

// measureTraffic compares the CPU time of new TCP connections, from SYN until conntrack forgets
// them, without counting, with connections counted, and with bytes counted. Then it measures a dump
// of many connections.
func measureTraffic(ctx context.Context, r *report) error {
	const rounds, connections = 7, 10_000
	if err := setUpLoopback(); err != nil {
		return err
	}
	s := state(0)
	s.Node.LocalPods.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	tcp, udp := service(1, 16), service(2, 32)
	udp.Key.Protocol = proxy.UDP
	for _, sp := range []*proxy.ServicePort{tcp, udp} {
		s.Rows[sp.Key] = sp
	}
	_, _, stop, err := syncAndWatch(ctx, s)
	if err != nil {
		return err
	}
	closeServer, err := listenAndClose(8080)
	if err != nil {
		return err
	}
	defer closeServer()
	levels := []string{"off", "connections", "bytes"}
	took := map[string][]time.Duration{}
	for range rounds {
		for _, level := range levels {
			each, err := connectAll(ctx, s, level, tcp.Frontends[0].Addr, connections)
			if err != nil {
				return err
			}
			took[level] = append(took[level], each)
		}
	}
	for _, level := range levels[1:] {
		ratio := medianRatio(took[level], took["off"])
		r.add("CPU time of a new connection, --service-traffic off and "+level,
			fmt.Sprintf("%v and %v, %.3fx", median(took["off"]), median(took[level]), ratio), "within 1.1x", ratio <= 1.1)
	}
	if err := measureDump(ctx, r, s, udp.Frontends[0].Addr); err != nil {
		return err
	}
	return stop()
}

// listenAndClose closes every connection to a port as soon as it is accepted.
func listenAndClose(port int) (func(), error) {
	ln, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return func() { _ = ln.Close() }, nil
}

// countedEnds counts the destroy events of connections.
type countedEnds struct {
	ct.Ends
	n atomic.Int64
}

func (c *countedEnds) Take(each func(*ct.Flow)) error {
	return c.Ends.Take(func(f *ct.Flow) {
		c.n.Add(1)
		each(f)
	})
}

// newCollector counts the traffic of a state until stop is called.
func newCollector(ctx context.Context, s *proxy.State) (c *traffic.Collector, ends *countedEnds, stop func() error, err error) {
	flows, err := ct.Open()
	if err != nil {
		return nil, nil, nil, err
	}
	events, err := ct.OpenEnds()
	if err != nil {
		return nil, nil, nil, err
	}
	ends = &countedEnds{Ends: events}
	c = traffic.New(traffic.Settings{
		Flows: flows, Ends: ends, Bytes: true, MaxSeries: traffic.DefaultMaxSeries,
		LocalAddrs: func() ([]netip.Prefix, error) { return nil, nil },
	})
	d := &proxy.Delta{}
	for _, sp := range s.Rows {
		d.Upserts = append(d.Upserts, proxy.Upsert{New: sp})
	}
	c.Applied(s.Node, d)
	c.Refresh(ctx)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	return c, ends, func() error {
		cancel()
		return errors.Join(<-ended, c.Close())
	}, nil
}

// connectAll makes connections, flushes conntrack and returns the CPU time per connection.
func connectAll(ctx context.Context, s *proxy.State, level string, to netip.AddrPort, n int) (time.Duration, error) {
	acct := "0"
	if level == "bytes" {
		acct = "1"
	}
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte(acct), 0o644); err != nil {
		return 0, err
	}
	var ends *countedEnds
	if level != "off" {
		_, counted, stop, err := newCollector(ctx, s)
		if err != nil {
			return 0, err
		}
		defer func() { _ = stop() }()
		ends = counted
	}
	pod := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 200, 0, 1)}, Timeout: 5 * time.Second}
	began := cpuTime()
	for range n {
		c, err := pod.DialContext(ctx, "tcp4", to.String())
		if err != nil {
			return 0, err
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return 0, err
	}
	for end := time.Now().Add(10 * time.Second); ends != nil && ends.n.Load() < int64(n); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return 0, fmt.Errorf("wait for destroy events: got %d of %d", ends.n.Load(), n)
		}
	}
	return (cpuTime() - began) / time.Duration(n), nil
}

// cpuTime returns the CPU time of this process, including system calls.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measureDump measures a dump of many connections.
func measureDump(ctx context.Context, r *report, s *proxy.State, to netip.AddrPort) error {
	const flows = 200_000
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("60"), 0o644); err != nil {
		return err
	}
	for port := range flows / 50_000 {
		if _, err := sendFlows(to, 30_000+port, 50_000); err != nil {
			return err
		}
	}
	cpu := cpuTime()
	c, _, stop, err := newCollector(ctx, s) // dumps them
	if err != nil {
		return err
	}
	all, _ := c.Rows()
	for _, row := range all {
		r.note(fmt.Sprintf("CPU time of one look at %d connections, for each", row.Active), fmt.Sprint((cpuTime()-cpu)/time.Duration(row.Active)))
	}
	return errors.Join(stop(), netlink.ConntrackTableFlush(netlink.ConntrackTable))
}
