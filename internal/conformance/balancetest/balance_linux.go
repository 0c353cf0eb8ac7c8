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
	// Open is called inside the node's network namespace, and so is every
	// method of what it returns.
	Open func(context.Context) (proxy.Dataplane, error)
	Ways []proxy.Balancing // that it knows
}

// Run checks all that a mode promises.
func Run(t *testing.T, m Mode) {
	for _, f := range proxy.Families {
		for _, way := range append([]proxy.Balancing{proxy.BalanceDefault}, m.Ways...) {
			t.Run(fmt.Sprintf("%v/%v", way, f), func(t *testing.T) {
				b := newBed(t, m, f)
				for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
					b.spread(p, way)
					b.affinity(p, way)
				}
				if way == proxy.RoundRobin {
					b.turns()
				}
			})
		}
	}
}

const (
	endpoints   = 4
	port        = 8080
	nodePort    = 30080
	connections = 50 * endpoints // of one client, or with each client
	clients     = 240
)

// bed is a lab with a dataplane on its node, and a pod with endpoints.
type bed struct {
	*testing.T
	lab    *lab.Lab
	family proxy.Family
	dp     proxy.Dataplane
	pods   []netip.Addr
}

func newBed(t *testing.T, m Mode, f proxy.Family) *bed {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, lab: l, family: f}
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
	t.Cleanup(func() {
		b.must(l.Node().Do(b.dp.Close))
		b.must(l.Close())
	})
	return b
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) addr(v4, v6 string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([...]string{v4, v6}[b.family], n))
}

// row is Service number i, which has a ClusterIP and a NodePort.
func (b *bed) row(i int, p proxy.Protocol, way proxy.Balancing) *proxy.ServicePort {
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

// sync puts rows in force.
func (b *bed) sync(rows ...*proxy.ServicePort) {
	b.Helper()
	s := proxy.NewState()
	s.Node = &proxy.Node{Name: "node", NodePorts: []netip.Prefix{netip.PrefixFrom(b.family.Unspecified(), 0)}}
	for _, sp := range rows {
		s.Rows[sp.Key] = sp
	}
	b.must(b.lab.Node().Do(func() error { return proxytest.Sync(b.Context(), b.dp, s) }))
}

// connect makes connections to a Service's frontend, one from each client, and
// returns who answered.
func (b *bed) connect(sp *proxy.ServicePort, frontend int, from ...netip.Addr) []netip.AddrPort {
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
			b.Fatalf("%v to %v: %v", flows[i].Src, to, s)
		}
		by = append(by, s.By)
	}
	return by
}

func (b *bed) client(i int) netip.Addr { return b.addr("203.0.113.%d", "2600:5200::%d", 10+i) }

func (b *bed) clients() (out []netip.Addr) {
	for i := range clients {
		out = append(out, b.client(i))
	}
	return out
}

// spread checks the shares of all endpoints, at each frontend.
func (b *bed) spread(p proxy.Protocol, way proxy.Balancing) {
	b.Helper()
	sp := b.row(0, p, way)
	b.sync(sp)
	for i, f := range sp.Frontends {
		what := fmt.Sprintf("%v, %v", p, f.Kind)
		if way != proxy.SourceHash && way != proxy.Maglev {
			b.even(what, b.connect(sp, i, slices.Repeat([]netip.Addr{b.client(0)}, connections)...), way == proxy.RoundRobin)
			continue
		}
		first := b.connect(sp, i, b.clients()...)
		if again := b.connect(sp, i, b.clients()...); !slices.Equal(first, again) {
			b.Errorf("%s: clients went to %v, and then to %v", what, first, again)
		}
		b.even(what, first, false)
	}
}

// even checks that all endpoints got the same number of connections, or else
// numbers that differ by no more than chance allows: five times the standard
// deviation happens less than once in a million.
func (b *bed) even(what string, by []netip.AddrPort, exact bool) {
	b.Helper()
	share := shares(by)
	p := 1 / float64(endpoints)
	tolerance := 5 * math.Sqrt(float64(len(by))*p*(1-p))
	if exact {
		tolerance = 0
	}
	for _, a := range b.pods[:endpoints] {
		n := share[netip.AddrPortFrom(a, port)]
		if math.Abs(float64(n)-p*float64(len(by))) > tolerance {
			b.Errorf("%s: %v got %d of %d connections: %v", what, a, n, len(by), share)
		}
	}
	if len(share) > endpoints {
		b.Errorf("%s: others answered: %v", what, slices.Collect(maps.Keys(share)))
	}
}

func shares(by []netip.AddrPort) map[netip.AddrPort]int {
	share := map[netip.AddrPort]int{}
	for _, a := range by {
		share[a]++
	}
	return share
}

// affinity checks that clients stay where they are, and that the way says where
// each goes first.
func (b *bed) affinity(p proxy.Protocol, way proxy.Balancing) {
	b.Helper()
	sp := b.row(1, p, way)
	sp.Affinity = time.Hour
	b.sync(sp)
	first := b.connect(sp, 0, b.clients()...)
	b.even(fmt.Sprintf("%v, affinity", p), first, way == proxy.RoundRobin)
	for range 2 {
		if again := b.connect(sp, 0, b.clients()...); !slices.Equal(first, again) {
			b.Errorf("%v, affinity: clients went to %v, and then to %v", p, first, again)
		}
	}
}

// turns checks that Services do not take each other's turns, neither those of
// one number of endpoints nor after it has changed.
func (b *bed) turns() {
	b.Helper()
	one, other := b.row(0, proxy.TCP, proxy.RoundRobin), b.row(1, proxy.TCP, proxy.RoundRobin)
	b.sync(one, other)
	var by [2][]netip.AddrPort
	for range 3 * endpoints {
		for i, sp := range []*proxy.ServicePort{one, other} {
			by[i] = append(by[i], b.connect(sp, 0, b.client(0))...)
		}
	}
	b.even("in turns with another Service", by[0], true)
	b.even("in turns with another Service", by[1], true)
	more := b.row(0, proxy.TCP, proxy.RoundRobin)
	more.Cluster = append(more.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(b.pods[endpoints], port), Local: true})
	b.must(b.lab.Node().Do(func() error {
		return proxytest.Apply(b.Context(), b.dp, &proxy.Delta{Upserts: []proxy.Upsert{{Old: one, New: more}}})
	}))
	share := shares(b.connect(more, 0, slices.Repeat([]netip.Addr{b.client(0)}, 10*len(more.Cluster))...))
	for _, e := range more.Cluster {
		if share[e.Addr] != 10 {
			b.Errorf("with one endpoint more: shares %v", share)
		}
	}
}
