package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// describeStates returns, as an error, the states of a random group, which are in no file.
func (g *Group) describeStates(mode string) error {
	text := "the states were"
	for i, w := range g.worlds() {
		text += fmt.Sprintf("\nphase %s, %+v:\n%v", g.Phases[i].Name, w.Config, w.newResolver(mode).State())
	}
	return errors.New(text)
}

func randomGroup(mode string, seed uint64) (*Group, error) {
	m := &generator{rand.New(rand.NewPCG(seed, 2))}
	return m.group(mode, fmt.Sprintf("seed=%d", seed), 3, 30)
}

// group generates a group. The expectations are the oracle's answers.
func (m *generator) group(mode, id string, phases, packets int) (*Group, error) {
	g := &Group{ID: id, World: World{Config: m.config(), NodeLabels: m.labels()}}
	for i := range 3 + m.IntN(4) {
		g.Services = append(g.Services, m.service(i))
		g.Slices = append(g.Slices, m.slices(i)...)
	}
	g.Phases = []Phase{{Name: initial}}
	for i := 1; i < phases; i++ {
		g.Phases = append(g.Phases, m.phase(fmt.Sprintf("change-%d", i)))
	}
	if err := g.World.complete(g.Phases...); err != nil {
		return nil, err
	}
	for i, w := range g.worlds() {
		state := w.newResolver(mode).State()
		for j := range packets {
			c := m.packet(state)
			c.ID, c.Phase = fmt.Sprintf("%s-packet-%d", g.Phases[i].Name, j), g.Phases[i].Name
			if err := c.fillSource(); err != nil {
				return nil, err
			}
			c.Expect = oracleAnswer(state, c)
			g.Cases = append(g.Cases, c)
		}
	}
	return g, g.complete()
}

// generator generates random objects from a few addresses, so that they often conflict.
type generator struct{ chooser }

// chooser makes random choices. Low numbers should select what is simple, so that a failing history
// can be shrunk.
type chooser interface{ IntN(n int) int }

// pick returns one of the arguments.
func pick[T any](m *generator, from ...T) T { return from[m.IntN(len(from))] }

// subset returns a random subset of the arguments, in order.
func subset[T any](m *generator, from ...T) []T {
	var out []T
	for _, x := range from {
		if m.IntN(2) != 0 {
			out = append(out, x)
		}
	}
	return out
}

func (m *generator) zone() string { return pick(m, "zone-a", "zone-b") }

// labels returns the labels of a node, with or without a zone.
func (m *generator) labels() map[string]string {
	if m.IntN(4) == 3 {
		return map[string]string{}
	}
	return map[string]string{v1.LabelTopologyZone: m.zone()}
}

// ranges returns Service CIDRs that contain all ClusterIPs, but not all other destinations of
// packets.
func (m *generator) ranges() []string {
	return pick(m, serviceCIDRs, []string{"172.30.0.0/17", "fd00:172:30::/112"}, []string{"172.30.8.0/23", "fd00:172:30::80/121"})
}

func (m *generator) config() Config {
	return Config{
		DetectLocal:       pick(m, "cluster-cidr", "node-cidr", "bridge", "prefix", "none"),
		MasqueradeAll:     m.IntN(4) == 0,
		NodePortAddresses: pick(m, stringList{"all"}, stringList{"192.168.1.0/24"}, nil),
		ServiceCIDRs:      m.ranges(),
	}
}

// serviceTemplate returns Service i with all ports that it may have. Its node ports are in the part
// of the range from which an API server does not allocate by itself.
func serviceTemplate(i int) *v1.Service {
	s := &v1.Service{Spec: v1.ServiceSpec{Ports: []v1.ServicePort{
		{Name: "a", Protocol: v1.ProtocolTCP, Port: 80, NodePort: int32(30000 + i)},
		{Name: "b", Protocol: v1.ProtocolUDP, Port: 80, NodePort: int32(30000 + i)},
		{Name: "c", Protocol: v1.ProtocolTCP, Port: 81, NodePort: int32(30040 + i)},
	}}}
	s.Namespace, s.Name = "random", fmt.Sprintf("s%d", i)
	return s
}

func (m *generator) service(i int) *v1.Service {
	s := serviceTemplate(i)
	s.CreationTimestamp = createdAt(m.IntN(3))
	s.Annotations = map[string]string{"sluice.dev/load-balancing": pick(m, "random", "round-robin")}
	s.Spec.Type = pick(m, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeLoadBalancer)
	s.Spec.ExternalTrafficPolicy = pick(m, v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)
	s.Spec.InternalTrafficPolicy = pick(m, new(v1.ServiceInternalTrafficPolicyCluster), new(v1.ServiceInternalTrafficPolicyLocal), nil)
	// One is an address of the node, one another Service's ClusterIP.
	s.Spec.ExternalIPs = subset(m, "192.168.99.11", "192.168.99.22", "2001:db8:99::22", fmt.Sprintf("172.30.9.%d", (i+1)%6))
	m.affinity(s)
	s.Spec.Ports = append(s.Spec.Ports[:1:1], subset(m, s.Spec.Ports[1:]...)...)
	v4, v6 := fmt.Sprintf("172.30.9.%d", i), fmt.Sprintf("fd00:172:30::9%d", i)
	s.Spec.ClusterIPs = pick(m, []string{v4, v6}, []string{v4}, []string{v6})
	for _, a := range s.Spec.ClusterIPs {
		f := proxy.FamilyOf(netip.MustParseAddr(a))
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, v1.IPFamily(f.String()))
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer.Ingress = subset(m, v1.LoadBalancerIngress{IP: "1.2.3.4"}, v1.LoadBalancerIngress{IP: "5.6.7.8"},
			v1.LoadBalancerIngress{IP: "2001:db8:ff::4"}, v1.LoadBalancerIngress{IP: "9.10.11.12", IPMode: new(v1.LoadBalancerIPModeProxy)})
		ranges := subset(m, "203.0.113.0/25", "203.0.0.0/16", "10.0.0.0/8", "10.0.0.2/32",
			"192.168.0.0/24", "192.168.0.2/32", "2600:5200::/64", "2600::/16")
		if m.IntN(2) != 0 {
			s.Spec.LoadBalancerSourceRanges = ranges
		}
	}
	return s
}

// affinity gives some Services session affinity with a timeout that outlasts the phases.
func (m *generator) affinity(s *v1.Service) {
	if m.IntN(3) != 1 {
		return
	}
	s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
		ClientIP: &v1.ClientIPConfig{TimeoutSeconds: pick(m, new(int32(v1.DefaultClientIPServiceAffinitySeconds)), new(int32(600)), new(int32(86400)))},
	}
}

// hints returns the hints of an endpoint. kind selects how the slice uses them: none, zones for
// every other endpoint, zones, or zones and nodes.
func (m *generator) hints(kind, endpoint int) *discoveryv1.EndpointHints {
	if kind == 0 || kind == 1 && endpoint%2 == 0 {
		return nil
	}
	h := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: m.zone()}}}
	if kind == 3 {
		h.ForNodes = []discoveryv1.ForNode{{Name: pick(m, nodeName, "node-b")}}
	}
	return h
}

// slices returns the slices of a Service, one per family.
func (m *generator) slices(i int) []*discoveryv1.EndpointSlice {
	addrs := [...][]string{
		proxy.IPv4: {"10.0.0.10", "10.0.0.11", "10.1.0.10", "10.2.0.10"},
		proxy.IPv6: {"fd00:10::10", "fd00:10::11", "fd00:10::1:0:0:10", "fd00:10::2:0:0:10"},
	}
	nodes := []string{nodeName, nodeName, "node-b", "node-c"}
	var out []*discoveryv1.EndpointSlice
	for _, f := range proxy.Families {
		s := endpointSlice(serviceTemplate(i), f, int32(8000+i))
		kind := m.IntN(4)
		for _, n := range subset(m, 0, 1, 2, 3) {
			state := pick(m, "ready", "ready", "ready", "ready", "leaving", pick(m, "dead", "unready", "starting", "failing"))
			e := endpoint(addrs[f][n], nodes[n], conditions[state])
			e.Hints = m.hints(kind, n)
			s.Endpoints = append(s.Endpoints, e)
		}
		if m.IntN(8) == 7 { // assign it to another Service
			s.Labels[discoveryv1.LabelServiceName] = serviceTemplate(m.IntN(6)).Name
		}
		out = append(out, s)
	}
	return out
}

func (m *generator) phase(name string) Phase {
	p := Phase{Name: name}
	for i := range 6 {
		switch m.IntN(4) {
		case 1:
			p.Services = append(p.Services, m.service(i))
		case 2:
			p.Slices = append(p.Slices, m.slices(i)...)
		case 3:
			p.DeleteServices = append(p.DeleteServices, key(serviceTemplate(i)))
		}
	}
	if m.IntN(2) != 0 {
		p.NodeLabels = m.labels()
	}
	if m.IntN(4) == 3 {
		p.ServiceCIDRs = m.ranges()
	}
	p.Detour, p.Kill = m.IntN(2) != 0, m.IntN(6) == 5
	return p
}

// packet returns a packet whose destination is likely to be a frontend.
func (m *generator) packet(s *proxy.State) *Case {
	c := &Case{
		From:  pick(m, FromPod, FromNode, FromOutside, FromBlocked, FromRemotePod),
		Dst:   netip.MustParseAddr(pick(m, "172.30.200.1", "1.2.3.4", "9.10.11.12", "192.168.99.22", "fd00:172:30::50", "192.168.1.2")),
		DPort: uint16(pick(m, 80, 81, 82)),
		Proto: pick(m, v1.ProtocolTCP, v1.ProtocolUDP),
	}
	keys := s.Keys()
	if len(keys) == 0 || m.IntN(8) == 0 {
		return c
	}
	plain := func(k proxy.PortKey) bool { return s.Rows[k].Affinity == 0 }
	if sticky := slices.DeleteFunc(slices.Clone(keys), plain); len(sticky) > 0 && m.IntN(3) == 1 {
		keys = sticky // rows with affinity are rare
	}
	row := s.Rows[pick(m, keys...)]
	if len(row.Frontends) == 0 {
		return c
	}
	f := pick(m, row.Frontends...)
	c.Dst, c.DPort, c.Proto = f.Addr.Addr(), f.Addr.Port(), v1.Protocol(row.Key.Protocol.String())
	if f.Kind == proxy.NodePort {
		at := [...][]string{{"192.168.0.2", "192.168.1.2", "10.0.0.1"}, {"2001:db8::1", "2001:db8:1::2"}}
		c.Dst = netip.MustParseAddr(pick(m, at[row.Key.Family]...))
	}
	if m.IntN(3) == 0 {
		c.From, c.Src = FromSelf, netip.MustParseAddr(pods["local"][row.Key.Family])
	}
	return c
}
