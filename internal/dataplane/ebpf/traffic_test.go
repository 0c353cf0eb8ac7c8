package ebpf_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// TestTraffic checks the counts of all and of open connections, by endpoint.
func TestTraffic(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...), row("dns", proxy.UDP, dns, pods[0]))
	counted := func(p proxy.Protocol, at netip.AddrPort) (n proxy.Traffic, endpoints int) {
		t.Helper()
		err := h.d.Traffic(t.Context(), func(s proxy.Sample) {
			if s.Protocol == p && s.Frontend == at && s.Endpoint.IsValid() {
				n.Connections += s.Connections
				n.Active += s.Active
				endpoints++
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return n, endpoints
	}
	before, _ := counted(proxy.TCP, web) // made by serve
	var open []*socket
	const times = 40
	for range times {
		open = append(open, h.socket(h.client, proxy.TCP, web))
	}
	if n, endpoints := counted(proxy.TCP, web); n.Connections != before.Connections+times || n.Active != times || endpoints != len(pods) {
		t.Errorf("%+v of %d endpoints; want %d more than %+v of %d", n, endpoints, times, before, len(pods))
	}
	for _, s := range open[times/2:] {
		s.close()
	}
	if n, _ := counted(proxy.TCP, web); n.Connections != before.Connections+times || n.Active != times/2 {
		t.Errorf("%+v; want %d open", n, times/2)
	}
	s := h.socket(h.client, proxy.UDP, netip.AddrPort{})
	for range 5 {
		s.ask(dns)
	}
	if n, _ := counted(proxy.UDP, dns); fmt.Sprint(n.Connections, n.Active) != "1 1" {
		t.Errorf("%+v for the datagrams of one socket; want 1 connection, which is open", n)
	}
}

// TestTrafficOfManyEndpoints has two threads connect to more endpoints than programs have
// places to count, while the counts are read. None is lost, and none is counted twice.
func TestTrafficOfManyEndpoints(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	var to []netip.AddrPort
	for i := range 6000 {
		to = append(to, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 53))
	}
	to = append(to, slices.Repeat(pods[:1], 2000)...) // one that is chosen again and again
	h.serve(row("dns", proxy.UDP, dns, to...))
	connections := func() (n uint64) {
		t.Helper()
		h.must(h.d.Traffic(t.Context(), func(s proxy.Sample) { n += s.Connections }))
		return n
	}
	before := connections() // made by serve
	const threads, times = 2, 20_000
	ended := make(chan error, threads)
	for range threads {
		s := h.socket(h.client, proxy.UDP, netip.AddrPort{})
		go func() {
			var err error
			for i := 0; i < times && err == nil; i++ {
				err = unix.Connect(s.fd, sockaddr(dns))
			}
			ended <- err
		}()
	}
	for running := threads; running > 0; {
		select {
		case err := <-ended:
			if running--; err != nil {
				t.Fatal(err)
			}
		default:
			connections()
		}
	}
	if n := connections() - before; n != threads*times {
		t.Errorf("%d connections were counted, %d were made", n, threads*times)
	}
}
