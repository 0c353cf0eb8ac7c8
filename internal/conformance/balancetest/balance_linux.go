package balancetest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// Mode is a dataplane under test.
type Mode struct {
	// Open is called inside the node's network namespace, and so are all methods of the result.
	Open    func(context.Context) (proxy.Dataplane, error)
	Ways    []proxy.Balancing // the methods that it supports besides the default
	Weights bool              // it supports weights
}

// Run checks everything that a mode supports.
func Run(t *testing.T, m Mode) {
	for _, f := range proxy.Families {
		for _, way := range append([]proxy.Balancing{proxy.BalanceDefault}, m.Ways...) {
			t.Run(fmt.Sprintf("%v/%v", way, f), func(t *testing.T) {
				b := newTestbed(t, m, f)
				for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
					b.checkShares(p, way)
					b.checkAffinity(p, way)
					if m.Weights && way != proxy.LeastConnections { // which depends on how long connections last
						b.checkWeights(p, way)
					}
				}
				switch way {
				case proxy.RoundRobin:
					b.checkTurns()
				case proxy.Maglev:
					b.checkMaglevChange()
				}
			})
		}
	}
}

const (
	endpoints   = 4
	port        = 8080
	nodePort    = 30080
	connections = 200 // of one client; divisible by all sums of weights
	clients     = 240
)

// testbed is a lab with a dataplane on its node and a pod with all endpoints.
type testbed struct {
	*testing.T
	lab    *lab.Lab
	family proxy.Family
	dp     proxy.Dataplane
	pods   []netip.Addr
}

func newTestbed(t *testing.T, m Mode, f proxy.Family) *testbed {
	l := lab.ForTest(t, lab.Config{})
	b := &testbed{T: t, lab: l, family: f}
	for i := range endpoints + 1 {
		b.pods = append(b.pods, b.addr("10.0.0.%d", "fd00:10::%d", 20+i))
	}
	pod, err := l.AddPod("pod", b.pods...)
	b.must(err)
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		for _, a := range b.pods {
			listener, err := pod.Listen(p, netip.AddrPortFrom(a, port))
			b.must(err)
			t.Cleanup(func() { b.must(listener.Close()) })
		}
	}
	b.must(l.Node().Do(func() (err error) {
		b.dp, err = m.Open(t.Context())
		return err
	}))
	end := func() error { return nil }
	if r, ok := b.dp.(proxy.Runner); ok {
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		end = func() error { stop(); return <-ended }
	}
	t.Cleanup(func() {
		b.must(end())
		b.must(l.Node().Do(b.dp.Close))
	})
	return b
}

func (b *testbed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *testbed) addr(v4, v6 string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([...]string{v4, v6}[b.family], n))
}

// row returns Service number i, with a ClusterIP and a NodePort.
func (b *testbed) row(i int, p proxy.Protocol, way proxy.Balancing) *proxy.ServicePort {
	name := proxy.ServicePortName{Namespace: "balance", Name: fmt.Sprint("service-", i), Protocol: p}
	sp := &proxy.ServicePort{
		Key: proxy.PortKey{ServicePortName: name, Family: b.family},
		Frontends: []proxy.Frontend{
			{Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(b.addr("172.30.1.%d", "fd00:172:30::%d", 10+i), 80)},
			{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(b.family.Unspecified(), nodePort+uint16(i))},
		},
		Balancing: way, UsableSomewhere: true,
	}
	for _, a := range b.pods[:endpoints] {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(a, port), Local: true})
	}
	return sp
}

func (b *testbed) sync(rows ...*proxy.ServicePort) {
	b.Helper()
	s := proxy.NewState()
	s.Node = &proxy.Node{Name: "node", NodePorts: []netip.Prefix{netip.PrefixFrom(b.family.Unspecified(), 0)}}
	for _, sp := range rows {
		s.Rows[sp.Key] = sp
	}
	b.must(b.lab.Node().Do(func() error { return proxytest.Sync(b.Context(), b.dp, s) }))
}

// connect makes one connection to a Service's frontend from each client, and returns the endpoints
// that answered.
func (b *testbed) connect(sp *proxy.ServicePort, frontend int, from ...netip.Addr) []netip.AddrPort {
	b.Helper()
	b.must(b.lab.Refresh())
	to := sp.Frontends[frontend].Addr
	if sp.Frontends[frontend].Kind == proxy.NodePort {
		to = netip.AddrPortFrom(b.addr("192.168.0.%d", "2001:db8:1::%d", 2), to.Port())
	}
	var flows []traffic.Flow
	for _, a := range from {
		flows = append(flows, traffic.Flow{Protocol: sp.Key.Protocol, Src: a, Dst: to, Patience: 10 * time.Second})
	}
	seen, err := b.lab.Outside().Probe(b.Context(), flows)
	b.must(err)
	var by []netip.AddrPort
	for i, s := range seen {
		if s.Fate != traffic.Answered {
			b.Fatalf("%v, %v from %v to %v: %v", i, sp.Key, flows[i].Src, to, s)
		}
		by = append(by, s.By)
	}
	return by
}

func (b *testbed) client(i int) netip.Addr { return b.addr("203.0.113.%d", "2600:5200::%d", 10+i) }

func (b *testbed) clients() (out []netip.Addr) {
	for i := range clients {
		out = append(out, b.client(i))
	}
	return out
}

// checkShares checks the share of every endpoint, for each frontend.
func (b *testbed) checkShares(p proxy.Protocol, way proxy.Balancing) {
	b.Helper()
	sp := b.row(0, p, way)
	b.sync(sp)
	for i, f := range sp.Frontends {
		what := fmt.Sprintf("%v, %v", p, f.Kind)
		by := b.connect(sp, i, b.clientsFor(way)...)
		b.wantShares(what, sp, by, way)
		if way == proxy.SourceHash || way == proxy.Maglev {
			if again := b.connect(sp, i, b.clientsFor(way)...); !slices.Equal(by, again) {
				b.Errorf("%s: clients went to %v, and then to %v", what, by, again)
			}
		}
	}
}

// clientsFor returns the clients whose connections show how a method distributes: one client many
// times, or many clients where the client's address determines the endpoint.
func (b *testbed) clientsFor(way proxy.Balancing) []netip.Addr {
	if way == proxy.SourceHash || way == proxy.Maglev {
		return b.clients()
	}
	return slices.Repeat([]netip.Addr{b.client(0)}, connections)
}

// wantShares checks that each endpoint received its share of the connections: exactly in turn, or
// within five standard deviations, which chance exceeds less than once in a million runs. Which
// endpoint has the fewest connections depends on how soon they end, so there much more is allowed.
func (b *testbed) wantShares(what string, sp *proxy.ServicePort, by []netip.AddrPort, way proxy.Balancing) {
	b.Helper()
	got, total := countByEndpoint(by), 0
	for _, e := range sp.Cluster {
		total += e.Share()
	}
	for _, e := range sp.Cluster {
		p := float64(e.Share()) / float64(total)
		tolerance := 5 * math.Sqrt(float64(len(by))*p*(1-p))
		switch way {
		case proxy.RoundRobin:
			tolerance = 0.5 // of a float
		case proxy.LeastConnections:
			tolerance = 0.8 * p * float64(len(by))
		}
		if n := got[e.Addr]; math.Abs(float64(n)-p*float64(len(by))) > tolerance {
			b.Errorf("%s: %v got %d of %d connections: %v", what, e.Addr, n, len(by), got)
		}
	}
	if len(got) > len(sp.Cluster) {
		b.Errorf("%s: unexpected endpoints answered: %v", what, slices.Collect(maps.Keys(got)))
	}
}

// checkWeights checks the shares of endpoints with different weights, and with equal and large
// weights.
func (b *testbed) checkWeights(p proxy.Protocol, way proxy.Balancing) {
	b.Helper()
	for _, weights := range [][endpoints]uint16{{1, 2, 3, 4}, {65535, 65535, 65535, 65535}} {
		sp := b.row(2, p, way)
		for i, w := range weights {
			sp.Cluster[i].Weight = w
		}
		b.sync(sp)
		b.wantShares(fmt.Sprintf("%v, weights %v", p, weights), sp, b.connect(sp, 0, b.clientsFor(way)...), way)
	}
}

// checkMaglevChange checks that removing an endpoint moves few clients of other endpoints.
func (b *testbed) checkMaglevChange() {
	b.Helper()
	sp := b.row(3, proxy.TCP, proxy.Maglev)
	b.sync(sp)
	before := b.connect(sp, 0, b.clients()...)
	less := b.row(3, proxy.TCP, proxy.Maglev)
	gone := less.Cluster[1].Addr
	less.Cluster[1] = less.Cluster[endpoints-1] // as the resolver fills slots
	less.Cluster = less.Cluster[:endpoints-1]
	b.must(b.lab.Node().Do(func() error {
		return proxytest.Apply(b.Context(), b.dp, &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: less}}})
	}))
	moved := 0
	for i, a := range b.connect(less, 0, b.clients()...) {
		if before[i] != gone && a != before[i] {
			moved++
		}
	}
	if moved > clients/5 {
		b.Errorf("%d of %d clients of remaining endpoints moved", moved, clients)
	}
}

func countByEndpoint(by []netip.AddrPort) map[netip.AddrPort]int {
	share := map[netip.AddrPort]int{}
	for _, a := range by {
		share[a]++
	}
	return share
}

// checkAffinity checks that the method selects the first endpoint of a client, and that the client
// stays there.
func (b *testbed) checkAffinity(p proxy.Protocol, way proxy.Balancing) {
	b.Helper()
	sp := b.row(1, p, way)
	sp.Affinity = time.Hour
	b.sync(sp)
	first := b.connect(sp, 0, b.clients()...)
	b.wantShares(fmt.Sprintf("%v, affinity", p), sp, first, way)
	for range 2 {
		if again := b.connect(sp, 0, b.clients()...); !slices.Equal(first, again) {
			b.Errorf("%v, affinity: clients went to %v, and then to %v", p, first, again)
		}
	}
}

// checkTurns checks that Services have independent round-robin counters, also after the number of
// endpoints has changed.
func (b *testbed) checkTurns() {
	b.Helper()
	one, other := b.row(0, proxy.TCP, proxy.RoundRobin), b.row(1, proxy.TCP, proxy.RoundRobin)
	b.sync(one, other)
	var by [2][]netip.AddrPort
	for range 3 * endpoints {
		for i, sp := range []*proxy.ServicePort{one, other} {
			by[i] = append(by[i], b.connect(sp, 0, b.client(0))...)
		}
	}
	b.wantShares("in turns with another Service", one, by[0], proxy.RoundRobin)
	b.wantShares("in turns with another Service", other, by[1], proxy.RoundRobin)
	more := b.row(0, proxy.TCP, proxy.RoundRobin)
	more.Cluster = append(more.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(b.pods[endpoints], port), Local: true})
	b.must(b.lab.Node().Do(func() error {
		return proxytest.Apply(b.Context(), b.dp, &proxy.Delta{Upserts: []proxy.Upsert{{Old: one, New: more}}})
	}))
	b.wantShares("with one endpoint more", more, b.connect(more, 0, b.clientsFor(proxy.RoundRobin)...), proxy.RoundRobin)
}
