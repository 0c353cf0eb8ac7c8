package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// RunRandom plays n random worlds, each with changes in it, and compares what
// random packets meet with the oracle's answers. World i is made from seed+i
// alone and is the subtest seed=<that>.
func RunRandom(t *testing.T, d Dataplane, seed uint64, n int) {
	lab.Require(t)
	c := &company{d: d}
	for i := range uint64(n) {
		g, err := randomGroup(d.Mode, seed+i)
		if err != nil {
			t.Fatal(err)
		}
		c.enroll(t, &performer{id: g.ID, cases: g.names(d.Mode), play: func(ctx context.Context, st *stage) []Failure {
			return g.explained(d.Mode, st.perform(ctx, g))
		}})
	}
	c.start(t)
}

// explained adds the states that a random group went through to its failures:
// nobody has written them down.
func (g *Group) explained(mode string, failures []Failure) []Failure {
	if len(failures) == 0 {
		return nil
	}
	worlds, err := g.worlds()
	if err != nil {
		return failures
	}
	text := ""
	for i, w := range worlds {
		if r, err := w.resolver(mode); err == nil {
			text += fmt.Sprintf("\nphase %s, %+v:\n%v", g.Phases[i].Name, w.Config, r.State())
		}
	}
	return append(failures, Failure{Group: g.ID, How: "the states were", Got: text})
}

// randomPhases and randomPackets are the size of a random group.
const (
	randomPhases  = 3
	randomPackets = 30 // in each phase
)

// randomGroup makes a group from a seed. What it expects is what the oracle
// says.
func randomGroup(mode string, seed uint64) (*Group, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	m := &maker{rng: rng}
	g := &Group{ID: fmt.Sprintf("seed=%d", seed), Title: "random"}
	g.Config = m.config()
	g.NodeLabels = map[string]string{"topology.kubernetes.io/zone": m.zone()}
	for i := range 3 + rng.IntN(4) {
		g.Services = append(g.Services, m.service(i))
		g.Slices = append(g.Slices, m.slices(i)...)
	}
	g.Phases = []Phase{{Name: initial}}
	for i := 1; i < randomPhases; i++ {
		g.Phases = append(g.Phases, m.phase(fmt.Sprintf("change-%d", i)))
	}
	worlds, err := g.worlds()
	if err != nil {
		return nil, err
	}
	for i, p := range g.Phases {
		r, err := worlds[i].resolver(mode)
		if err != nil {
			return nil, err
		}
		for j := range randomPackets {
			c := m.packet(r.State())
			c.ID, c.Phase = fmt.Sprintf("%s-packet-%d", p.Name, j), p.Name
			if err := c.from(); err != nil {
				return nil, err
			}
			c.Expect = answer(r.State(), c)
			g.Cases = append(g.Cases, c)
		}
	}
	return g, g.complete()
}

// maker makes random objects out of a few addresses, so that they meet.
type maker struct{ rng *rand.Rand }

// pick returns one of several things.
func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// some returns a few of several things, in their order.
func some[T any](rng *rand.Rand, from ...T) []T {
	var out []T
	for _, x := range from {
		if rng.IntN(2) == 0 {
			out = append(out, x)
		}
	}
	return out
}

func (m *maker) zone() string { return pick(m.rng, "zone-a", "zone-b") }

func (m *maker) config() Config {
	c := Config{
		DetectLocal:   pick(m.rng, "cluster-cidr", "node-cidr", "bridge", "prefix", "none"),
		MasqueradeAll: m.rng.IntN(4) == 0,
	}
	switch m.rng.IntN(3) {
	case 0:
		c.NodePortAddresses.Word = "all"
	case 1:
		c.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}
	}
	return c
}

// ports are the ports that every Service has some of.
func (m *maker) ports(i int) []Port {
	number := func(n int32) *int32 { return &n }
	all := []Port{
		{Name: "a", Proto: "TCP", Port: number(80), NodePort: int32(3000 + i)},
		{Name: "b", Proto: "UDP", Port: number(80), NodePort: int32(3000 + i)},
		{Name: "c", Proto: "TCP", Port: number(81), NodePort: int32(3100 + i)},
	}
	return append(all[:1:1], some(m.rng, all[1:]...)...)
}

func (m *maker) service(i int) *Service {
	s := &Service{
		Name: fmt.Sprintf("random/s%d", i), Age: m.rng.IntN(3),
		Type: pick(m.rng, "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"),
		ETP:  pick(m.rng, "Cluster", "Local"), ITP: pick(m.rng, "Cluster", "Local", ""),
		ExternalIPs: some(m.rng, "192.168.99.11", "192.168.99.22", "2001:db8:99::22"),
		Ports:       m.ports(i),
	}
	v4, v6 := fmt.Sprintf("172.30.9.%d", i), fmt.Sprintf("fd00:172:30::9%d", i)
	switch m.rng.IntN(3) {
	case 0:
		s.IPFamilies, s.ClusterIPs = []string{"IPv4", "IPv6"}, []string{v4, v6}
	case 1:
		s.IPFamilies, s.ClusterIPs = []string{"IPv4"}, []string{v4}
	case 2:
		s.IPFamilies, s.ClusterIPs = []string{"IPv6"}, []string{v6}
	}
	if s.Type == "LoadBalancer" {
		s.LBIngress = some(m.rng, Ingress{IP: "1.2.3.4"}, Ingress{IP: "5.6.7.8"}, Ingress{IP: "2001:db8:ff::4"},
			Ingress{IP: "9.10.11.12", IPMode: "Proxy"})
		s.SourceRanges = some(m.rng, "203.0.113.0/25", "203.0.0.0/16", "10.0.0.0/8", "10.0.0.2/32",
			"192.168.0.0/24", "192.168.0.2/32", "2600:5200::/64", "2600::/16")
		if m.rng.IntN(2) == 0 {
			s.SourceRanges = nil
		}
	}
	if s.Type == "ClusterIP" {
		for i := range s.Ports {
			s.Ports[i].NodePort = 0
		}
	}
	return s
}

// slices returns a Service's slices, one of each family or none.
func (m *maker) slices(i int) []*Slice {
	places := []Endpoint{
		{IP: "10.0.0.10", Node: nodeName},
		{IP: "10.0.0.11", Node: nodeName},
		{IP: "10.1.0.10", Node: "node-b"},
		{IP: "10.2.0.10", Node: "node-c"},
	}
	places6 := []Endpoint{
		{IP: "fd00:10::10", Node: nodeName},
		{IP: "fd00:10::11", Node: nodeName},
		{IP: "fd00:10::1:0:0:10", Node: "node-b"},
		{IP: "fd00:10::2:0:0:10", Node: "node-c"},
	}
	number := int32(8000 + i)
	ports := []Port{
		{Name: "a", Proto: "TCP", Port: &number}, {Name: "b", Proto: "UDP", Port: &number}, {Name: "c", Proto: "TCP", Port: &number},
	}
	var out []*Slice
	for _, f := range proxy.Families {
		s := &Slice{
			Name: fmt.Sprintf("s%d-%v", i, f), Service: fmt.Sprintf("random/s%d", i),
			AddressType: f.String(), Ports: ports,
		}
		for _, e := range some(m.rng, [...][]Endpoint{places, places6}[f]...) {
			s.Endpoints = append(s.Endpoints, m.condition(e))
		}
		out = append(out, s)
	}
	return out
}

func (m *maker) condition(e Endpoint) Endpoint {
	yes, no := true, false
	switch m.rng.IntN(6) {
	case 0:
		e.Ready, e.Terminating = &no, &yes
	case 1:
		e.Ready, e.Serving, e.Terminating = &no, &no, pick(m.rng, &yes, &no)
	}
	if m.rng.IntN(2) == 0 {
		e.ZoneHints = []string{m.zone()}
	}
	return e
}

// phase changes some of the objects.
func (m *maker) phase(name string) Phase {
	p := Phase{Name: name}
	for i := range 6 {
		switch m.rng.IntN(4) {
		case 0:
			p.Services = append(p.Services, m.service(i))
		case 1:
			p.Slices = append(p.Slices, m.slices(i)...)
		case 2:
			p.DeleteServices.List = append(p.DeleteServices.List, fmt.Sprintf("random/s%d", i))
		}
	}
	if m.rng.IntN(2) == 0 {
		p.NodeLabels = map[string]string{"topology.kubernetes.io/zone": m.zone()}
	}
	return p
}

// packet makes a packet that is likely to be for somebody.
func (m *maker) packet(s *proxy.State) *Case {
	c := &Case{
		From:  pick(m.rng, FromPod, FromNode, FromOutside, FromBlocked, FromRemotePod),
		Dst:   netip.MustParseAddr(pick(m.rng, "172.30.200.1", "1.2.3.4", "9.10.11.12", "192.168.99.22", "fd00:172:30::50", "192.168.1.2")),
		DPort: uint16(pick(m.rng, 80, 81, 82)),
		Proto: proto(pick(m.rng, proxy.TCP, proxy.UDP)),
	}
	keys := s.Keys()
	if len(keys) == 0 || m.rng.IntN(8) == 0 {
		return c
	}
	row := s.Rows[pick(m.rng, keys...)]
	if len(row.Frontends) == 0 {
		return c
	}
	f := pick(m.rng, row.Frontends...)
	c.Dst, c.DPort, c.Proto = f.Addr.Addr(), f.Addr.Port(), proto(row.Key.Protocol)
	if f.Kind == proxy.NodePort {
		at := [...][]string{{"192.168.0.2", "192.168.1.2", "10.0.0.1"}, {"2001:db8::1", "2001:db8:1::2"}}
		c.Dst = netip.MustParseAddr(pick(m.rng, at[row.Key.Family]...))
	}
	if m.rng.IntN(3) == 0 {
		own := [...]string{"10.0.0.10", "fd00:10::10"}[row.Key.Family]
		c.From, c.Src = FromSelf, netip.MustParseAddr(own)
	}
	return c
}
