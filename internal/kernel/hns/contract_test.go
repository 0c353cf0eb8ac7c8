package hns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
)

var addresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// bench is a service with an overlay network, which need not be empty.
type bench struct {
	*testing.T
	hns.Interface
	network hns.Network
}

// TestContract checks that the service of Windows and the Fake behave in the same way.
func TestContract(t *testing.T) {
	for name, open := range implementations() {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) {
					s, network := open(t)
					n, err := s.Network(t.Context(), network)
					if err != nil {
						t.Fatal(err)
					}
					c.check(bench{t, s, n})
				})
			}
		})
	}
}

func openFake(*testing.T) (hns.Interface, string) {
	return hnstest.NewFake(hnstest.Full, hns.Network{Name: "overlay", Type: "Overlay", Remote: []hns.RemoteSubnet{{
		Prefix: netip.MustParsePrefix("10.1.2.0/24"), Provider: netip.MustParseAddr("192.168.0.2"),
	}}}), "overlay"
}

func remote(addr string) hns.Endpoint {
	return hns.Endpoint{
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, MAC: "02-11-0A-01-02-03", Remote: true, Provider: netip.MustParseAddr("192.168.0.2"),
	}
}

func tcp(vip string, endpoints ...string) hns.LoadBalancer {
	a := netip.MustParseAddr(vip)
	return hns.LoadBalancer{VIP: a, Family6: a.Is6(), Protocol: syscall.IPPROTO_TCP, ExternalPort: 80, InternalPort: 8080, Endpoints: endpoints}
}

var contract = []struct {
	name  string
	check func(bench)
}{
	{"a network", func(b bench) {
		if b.network.ID == "" || b.network.Type != "Overlay" || len(b.network.Remote) == 0 {
			b.Errorf("%+v; want an overlay network with an ID and a remote subnet", b.network)
		}
		_, err := b.Interface.Network(b.Context(), "no-such-network")
		b.wantError(err, hns.ErrNotFound)
	}},
	{"features", func(b bench) {
		if got, err := b.Features(b.Context()); got != hnstest.Full || err != nil {
			b.Errorf("%+v, error %v; want %+v", got, err, hnstest.Full)
		}
	}},
	{"endpoints come and go", func(b bench) {
		pod4, pod6 := remote("10.1.2.3"), remote("fd00:1:2::3")
		here := hns.Endpoint{Name: "sluice-contract", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2")}, MAC: "0E-2A-0A-01-00-02"}
		want := b.endpoints()
		id4, id6, idHere := b.endpoint(pod4), b.endpoint(pod6), b.endpoint(here)
		pod4.Network, pod6.Network, here.Network = b.network.ID, b.network.ID, b.network.ID
		want[id4], want[id6], want[idHere] = pod4, pod6, here
		b.wantEndpoints(want)
		b.wantError(b.DeleteEndpoint(b.Context(), id4), nil)
		delete(want, id4)
		b.wantEndpoints(want)
	}},
	{"endpoints that are refused", func(b bench) {
		b.endpoint(remote("10.1.2.3"))
		want := b.endpoints()
		twice, lost := remote("10.1.2.3"), remote("10.1.2.4")
		twice.Network, lost.Network = b.network.ID, unknown
		_, err := b.CreateEndpoint(b.Context(), twice)
		b.wantError(err, hns.ErrExists)
		_, err = b.CreateEndpoint(b.Context(), lost)
		b.wantError(err, hns.ErrNotFound)
		b.wantError(b.DeleteEndpoint(b.Context(), unknown), hns.ErrNotFound)
		b.wantEndpoints(want)
	}},
	{"load balancers come, change and go", func(b bench) {
		pod1, pod2, pod6 := b.endpoint(remote("10.1.2.3")), b.endpoint(remote("10.1.2.4")), b.endpoint(remote("fd00:1:2::3"))
		web, dns, web6, nodePort, nodePort6 := tcp("10.96.0.10", pod1, pod2), tcp("10.96.0.10", pod1), tcp("fd00:96::10", pod6), tcp("10.96.0.10", pod1), tcp("fd00:96::10", pod6)
		web.SourceVIP, web.Flags = netip.MustParseAddr("10.1.0.9"), hns.DSR|hns.ByClient|hns.LocalRoutedVIP
		dns.Protocol, dns.Flags = syscall.IPPROTO_UDP, hns.ILB|hns.UseMux|hns.PreserveDIP|hns.ExternalVIP
		nodePort.VIP, nodePort6.VIP, nodePort.ExternalPort, nodePort6.ExternalPort = netip.Addr{}, netip.Addr{}, 30080, 30080
		want := b.balancers()
		var ids []string
		for _, l := range []hns.LoadBalancer{web, dns, web6, nodePort, nodePort6} {
			id := b.balancer(l)
			want[id], ids = l, append(ids, id)
		}
		b.wantBalancers(want)
		web.Endpoints = []string{pod2}
		b.wantError(b.UpdateLoadBalancer(b.Context(), ids[0], web), nil)
		b.wantError(b.DeleteLoadBalancer(b.Context(), ids[1]), nil)
		want[ids[0]] = web
		delete(want, ids[1])
		b.wantBalancers(want)
		b.balancer(dns)
	}},
	{"load balancers that are refused", func(b bench) {
		pod := b.endpoint(remote("10.1.2.3"))
		b.balancer(tcp("10.96.0.10", pod))
		want := b.balancers()
		other := tcp("10.96.0.10", pod)
		other.InternalPort, other.Flags = 8443, hns.DSR
		_, err := b.CreateLoadBalancer(b.Context(), other)
		b.wantError(err, hns.ErrExists)
		_, err = b.CreateLoadBalancer(b.Context(), tcp("10.96.0.11", pod, unknown))
		b.wantError(err, hns.ErrNotFound)
		if _, err = b.CreateLoadBalancer(b.Context(), tcp("10.96.0.11")); err == nil {
			b.Error("a load balancer without endpoints is not refused")
		}
		b.wantError(b.UpdateLoadBalancer(b.Context(), unknown, tcp("10.96.0.11", pod)), hns.ErrNotFound)
		b.wantError(b.DeleteLoadBalancer(b.Context(), unknown), hns.ErrNotFound)
		b.wantBalancers(want)
	}},
	{"a load balancer keeps the ID of an endpoint that is deleted", func(b bench) {
		pod := b.endpoint(remote("10.1.2.3"))
		b.balancer(tcp("10.96.0.10", pod))
		want := b.balancers()
		b.wantError(b.DeleteEndpoint(b.Context(), pod), nil)
		b.wantBalancers(want)
	}},
	{"many", func(b bench) {
		want := b.balancers()
		for i := range 50 {
			l := tcp(fmt.Sprintf("10.97.0.%d", i), b.endpoint(remote(fmt.Sprintf("10.1.2.%d", i+3))))
			want[b.balancer(l)] = l
		}
		b.wantBalancers(want)
	}},
	{"a context that has ended", func(b bench) {
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		_, err := b.LoadBalancers(ctx)
		b.wantError(err, context.Canceled)
		_, err = b.CreateEndpoint(ctx, remote("10.1.2.3"))
		b.wantError(err, context.Canceled)
	}},
}

// unknown is the ID of nothing.
const unknown = "0bad0000-0000-4000-8000-000000000001"

// endpoint creates one for the time of the test.
func (b bench) endpoint(e hns.Endpoint) string {
	b.Helper()
	e.Network = b.network.ID
	id, err := b.CreateEndpoint(b.Context(), e)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { b.DeleteEndpoint(context.Background(), id) })
	return id
}

// balancer creates one for the time of the test.
func (b bench) balancer(l hns.LoadBalancer) string {
	b.Helper()
	id, err := b.CreateLoadBalancer(b.Context(), l)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { b.DeleteLoadBalancer(context.Background(), id) })
	return id
}

func (b bench) endpoints() map[string]hns.Endpoint {
	b.Helper()
	all, err := b.Endpoints(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func (b bench) balancers() map[string]hns.LoadBalancer {
	b.Helper()
	all, err := b.LoadBalancers(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func (b bench) wantEndpoints(want map[string]hns.Endpoint) {
	b.Helper()
	if diff := cmp.Diff(want, b.endpoints(), addresses); diff != "" {
		b.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func (b bench) wantBalancers(want map[string]hns.LoadBalancer) {
	b.Helper()
	if diff := cmp.Diff(want, b.balancers(), addresses); diff != "" {
		b.Errorf("load balancers (-want +got):\n%s", diff)
	}
}

func (b bench) wantError(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("error %v, want %v", err, want)
	}
}
