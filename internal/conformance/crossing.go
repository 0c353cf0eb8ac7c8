package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	"sluice/internal/proxy"
)

// crossing is a group made of the decision tables: every layout and pair of
// policies is a Service, each reached by every frontend from every place.
type crossing struct {
	detection detection
	family    proxy.Family
	protocol  proxy.Protocol
	layouts   []layout
	from      []Place
}

// decisionTables returns the groups that the decision tables give.
func decisionTables() []*Group {
	origins := []Place{FromPod, FromNode, FromOutside}
	everyone := append(origins, FromRemotePod, FromSelf)
	few := []layout{layouts[0], layouts[2], layouts[9]}
	var out []*Group
	for _, f := range proxy.Families {
		for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			out = append(out, crossing{detections[0], f, p, layouts, origins}.group())
		}
		out = append(out, crossing{detections[0], f, proxy.SCTP, few, everyone}.group())
		// The way pods are recognised has nothing to do with the protocol, so
		// one of them is enough for each family.
		protocol := [...]proxy.Protocol{proxy.IPv4: proxy.TCP, proxy.IPv6: proxy.UDP}[f]
		for _, d := range detections[1:] {
			out = append(out, crossing{d, f, protocol, few, everyone}.group())
		}
	}
	return out
}

func (x crossing) group() *Group {
	g := &Group{ID: fmt.Sprintf("table-%s-%v-%v", x.detection.name, x.family, x.protocol)}
	g.Title = "the decision tables, crossed"
	g.Config = x.detection.config
	n := 0
	for _, l := range x.layouts {
		for _, itp := range []string{"Cluster", "Local"} {
			for _, etp := range []string{"Cluster", "Local"} {
				n++
				x.add(g, member{layout: l, itp: itp, etp: etp, number: n})
			}
		}
	}
	return g
}

// member is one Service of a crossing.
type member struct {
	layout   layout
	itp, etp string
	number   int
}

// The port of every Service, and those that endpoints and nodes are told apart by.
const (
	servicePort   = 80
	firstPodPort  = 8000
	firstNodePort = 30000
)

// address returns the n-th address of a frontend kind.
func (x crossing) address(k proxy.Kind, n int) netip.Addr {
	var text string
	switch {
	case k == proxy.ClusterIP && x.family == proxy.IPv4:
		text = fmt.Sprintf("172.30.10.%d", n)
	case k == proxy.ClusterIP:
		text = fmt.Sprintf("fd00:172:30::a%02x", n)
	case k == proxy.LoadBalancer && x.family == proxy.IPv4:
		text = fmt.Sprintf("198.18.0.%d", n)
	case k == proxy.LoadBalancer:
		text = fmt.Sprintf("2001:db8:18::%x", n)
	case k == proxy.ExternalIP && x.family == proxy.IPv4:
		text = fmt.Sprintf("192.168.77.%d", n)
	case k == proxy.ExternalIP:
		text = fmt.Sprintf("2001:db8:77::%x", n)
	case x.family == proxy.IPv4:
		text = "192.168.0.2"
	default:
		text = "2001:db8::1"
	}
	return netip.MustParseAddr(text)
}

// pod returns the address of one of the two pods that all Services share.
func (x crossing) pod(which string) netip.Addr {
	text := map[string][2]string{
		"local":  {"10.0.0.10", "fd00:10::10"},
		"remote": {"10.1.0.10", "fd00:10::1:0:0:10"},
	}[which][x.family]
	return netip.MustParseAddr(text)
}

// add adds a Service, its endpoints and the packets to it.
func (x crossing) add(g *Group, m member) {
	port, podPort := int32(servicePort), int32(firstPodPort+m.number)
	name := fmt.Sprintf("crossing/s%d", m.number)
	g.Services = append(g.Services, &Service{
		Name: name, Type: "LoadBalancer", Family: x.family.String(), ITP: m.itp, ETP: m.etp,
		ClusterIP:   x.address(proxy.ClusterIP, m.number).String(),
		ExternalIPs: []string{x.address(proxy.ExternalIP, m.number).String()},
		LBIngress:   []Ingress{{IP: x.address(proxy.LoadBalancer, m.number).String()}},
		Ports:       []Port{{Name: "p", Proto: x.protocol.String(), Port: &port, NodePort: int32(firstNodePort + m.number)}},
	})
	s := &Slice{
		Service: name, AddressType: x.family.String(),
		Ports: []Port{{Name: "p", Proto: x.protocol.String(), Port: &podPort}},
	}
	if m.layout.local != absent {
		s.Endpoints = append(s.Endpoints, m.layout.local.endpoint(x.pod("local"), "local"))
	}
	if m.layout.remote != absent {
		s.Endpoints = append(s.Endpoints, m.layout.remote.endpoint(x.pod("remote"), "remote"))
	}
	g.Slices = append(g.Slices, s)
	for _, k := range []proxy.Kind{proxy.ClusterIP, proxy.LoadBalancer, proxy.ExternalIP, proxy.NodePort} {
		for _, from := range x.from {
			if from == FromSelf && m.layout.local == absent {
				continue
			}
			g.Cases = append(g.Cases, x.packet(m, k, from))
		}
	}
}

// endpoint returns an endpoint in a condition.
func (c condition) endpoint(a netip.Addr, which string) Endpoint {
	yes, no := true, false
	e := Endpoint{IP: a.String(), Node: map[string]string{"local": nodeName, "remote": "node-b"}[which]}
	switch c {
	case ready:
	case leaving:
		e.Ready, e.Serving, e.Terminating = &no, &yes, &yes
	case dead:
		e.Ready, e.Serving, e.Terminating = &no, &no, &yes
	case unready:
		e.Ready, e.Serving, e.Terminating = &no, &yes, &no
	default:
		panic(fmt.Sprintf("no endpoint in condition %d", c))
	}
	return e
}

// packet returns the case of one frontend and place.
func (x crossing) packet(m member, k proxy.Kind, from Place) *Case {
	c := &Case{
		ID:    strings.ToLower(fmt.Sprintf("%s-i%s-e%s-%v-from-%s", m.layout.name, m.itp, m.etp, k, from)),
		From:  from,
		Dst:   x.address(k, m.number),
		DPort: servicePort,
		Proto: proto(x.protocol),
	}
	if k == proxy.NodePort {
		c.DPort = uint16(firstNodePort + m.number)
	}
	if from == FromSelf {
		c.Src = x.pod("local")
	}
	a := x.detection.external(m.etp, m.layout.when, from)
	if k == proxy.ClusterIP {
		a = x.detection.clusterIP(m.itp, m.layout.when, from)
	}
	c.Expect = x.expect(m, a, from)
	return c
}

// expect writes an answer out. A client that is sent to itself is masqueraded
// in any case.
func (x crossing) expect(m member, a answerFor, from Place) Expect {
	e := Expect{Verdict: a.verdict}
	if a.verdict != proxy.Forward {
		return e
	}
	set := m.layout.cluster
	if a.local {
		set = m.layout.onNode
	}
	e.To = map[netip.AddrPort]bool{}
	for _, which := range set {
		to := netip.AddrPortFrom(x.pod(which), uint16(firstPodPort+m.number))
		e.To[to] = a.masq || from == FromSelf && which == "local"
	}
	return e
}
