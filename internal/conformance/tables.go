package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// The two decision tables, written out as they are specified. Nothing here is
// derived from the code that is tested.

// answerFor says what happens to one origin's packet.
type answerFor struct {
	verdict proxy.Verdict
	local   bool // to the Local set, else to the Cluster set
	masq    bool
}

// The answers that occur.
var (
	toC     = answerFor{verdict: proxy.Forward}
	toCMasq = answerFor{verdict: proxy.Forward, masq: true}
	toL     = answerFor{verdict: proxy.Forward, local: true}
	toLMasq = answerFor{verdict: proxy.Forward, local: true, masq: true}
	drop    = answerFor{verdict: proxy.Drop}
	reject  = answerFor{verdict: proxy.Reject}
)

// decision is a row of a table: a traffic policy, what endpoints there are, and
// the answers to our pods, the node itself and everybody else.
type decision struct {
	policy string // empty: either
	when   supply
	p      answerFor
	n      answerFor
	x      answerFor
}

// supply is what endpoints there are.
type supply uint8

const (
	somewhere supply = iota // a usable endpoint, here or not
	here                    // a usable endpoint on this node
	elsewhere               // usable endpoints, none on this node
	nowhere                 // none
)

// clusterIPTable is for ClusterIPs, by the internal traffic policy.
var clusterIPTable = []decision{
	{policy: "Cluster", when: somewhere, p: toC, n: toCMasq, x: toCMasq},
	{policy: "Local", when: here, p: toL, n: toLMasq, x: toLMasq},
	{policy: "Local", when: elsewhere, p: drop, n: drop, x: drop},
	{when: nowhere, p: reject, n: reject, x: reject},
}

// externalTable is for external IPs, load balancer addresses and NodePorts, by
// the external traffic policy.
var externalTable = []decision{
	{policy: "Cluster", when: somewhere, p: toCMasq, n: toCMasq, x: toCMasq},
	{policy: "Local", when: here, p: toC, n: toCMasq, x: toL},
	{policy: "Local", when: elsewhere, p: toC, n: toCMasq, x: drop},
	{when: nowhere, p: reject, n: reject, x: reject},
}

// layout is one arrangement of two endpoints, one on this node and one not.
type layout struct {
	name          string
	local, remote condition
	when          supply   // here, elsewhere or nowhere
	cluster       []string // the endpoints in the Cluster set: local, remote
	onNode        []string // those in the Local set
}

// condition is the state of an endpoint.
type condition uint8

const (
	absent  condition = iota
	ready             // in use
	leaving           // terminating, but still serving
	dead              // terminating and not serving
	unready           // neither ready nor terminating
)

// layouts are all arrangements that matter: each set falls back to endpoints
// that are leaving by itself.
var layouts = []layout{
	{"both", ready, ready, here, []string{"local", "remote"}, []string{"local"}},
	{"only-local", ready, absent, here, []string{"local"}, []string{"local"}},
	{"only-remote", absent, ready, elsewhere, []string{"remote"}, nil},
	{"local-leaving", leaving, ready, here, []string{"remote"}, []string{"local"}},
	{"remote-leaving", ready, leaving, here, []string{"local"}, []string{"local"}},
	{"all-leaving", leaving, leaving, here, []string{"local", "remote"}, []string{"local"}},
	{"only-remote-leaving", absent, leaving, elsewhere, []string{"remote"}, nil},
	{"local-unready", unready, ready, elsewhere, []string{"remote"}, nil},
	{"unusable", unready, dead, nowhere, nil, nil},
	{"none", absent, absent, nowhere, nil, nil},
}

// detection is one way of telling our pods from the rest.
type detection struct {
	name   string
	config Config
	off    bool // nobody is recognised
	remote bool // pods on other nodes are recognised too
}

// detections are all ways there are.
var detections = []detection{
	{name: "cluster-cidr", config: Config{DetectLocal: "cluster-cidr"}, remote: true},
	{name: "node-cidr", config: Config{DetectLocal: "node-cidr"}},
	{name: "bridge", config: Config{DetectLocal: "bridge"}},
	{name: "prefix", config: Config{DetectLocal: "prefix"}},
	{name: "none", config: Config{DetectLocal: "none"}, off: true},
	{name: "cluster-cidr-masquerade-all", config: Config{MasqueradeAll: true}, remote: true},
	{name: "none-masquerade-all", config: Config{DetectLocal: "none", MasqueradeAll: true}, off: true},
}

// decide looks an answer up for a place that a packet comes from.
func (d detection) decide(rows []decision, policy string, when supply, from Place) answerFor {
	row := find(rows, policy, when)
	switch {
	case from.onNode():
		return row.n
	case d.off, from.outside(), from == FromRemotePod && !d.remote:
		return row.x
	default:
		return row.p
	}
}

func find(rows []decision, policy string, when supply) decision {
	for _, r := range rows {
		fits := r.when == when || r.when == somewhere && when != nowhere
		if fits && (r.policy == "" || r.policy == policy) {
			return r
		}
	}
	panic("the table has no row for policy " + policy)
}

// clusterIP is the answer for a ClusterIP. Masquerading everything concerns
// these alone, and who cannot recognise pods masquerades nobody.
func (d detection) clusterIP(policy string, when supply, from Place) answerFor {
	a := d.decide(clusterIPTable, policy, when, from)
	if a.verdict == proxy.Forward {
		a.masq = d.config.MasqueradeAll || a.masq && !d.off
	}
	return a
}

// external is the answer for every other frontend.
func (d detection) external(policy string, when supply, from Place) answerFor {
	return d.decide(externalTable, policy, when, from)
}

// tableGroup says how a group is made of the decision tables: every layout and
// pair of policies is a Service, each reached by every frontend from every place.
type tableGroup struct {
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
			out = append(out, tableGroup{detections[0], f, p, layouts, origins}.group())
		}
		out = append(out, tableGroup{detections[0], f, proxy.SCTP, few, everyone}.group())
		// The way pods are recognised has nothing to do with the protocol, so
		// one of them is enough for each family.
		protocol := [...]proxy.Protocol{proxy.IPv4: proxy.TCP, proxy.IPv6: proxy.UDP}[f]
		for _, d := range detections[1:] {
			out = append(out, tableGroup{d, f, protocol, few, everyone}.group())
		}
	}
	return out
}

func (t tableGroup) group() *Group {
	g := &Group{ID: fmt.Sprintf("table-%s-%v-%v", t.detection.name, t.family, t.protocol)}
	g.Title = "the decision tables, crossed"
	g.Config = t.detection.config
	policies := []string{"Cluster", "Local"}
	for _, l := range t.layouts {
		for _, itp := range policies {
			for _, etp := range policies {
				t.add(g, tableService{layout: l, itp: itp, etp: etp, number: len(g.Services) + 1})
			}
		}
	}
	return g
}

// tableService is one Service of such a group.
type tableService struct {
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

// frontends are the addresses of a Service by its number, for each family.
var frontends = map[proxy.Kind][2]string{
	proxy.ClusterIP:    {"172.30.10.%d", "fd00:172:30::a%02x"},
	proxy.LoadBalancer: {"198.18.0.%d", "2001:db8:18::%x"},
	proxy.ExternalIP:   {"192.168.77.%d", "2001:db8:77::%x"},
}

func (t tableGroup) address(k proxy.Kind, number int) string {
	if k == proxy.NodePort {
		return clients[FromNode][t.family]
	}
	return fmt.Sprintf(frontends[k][t.family], number)
}

// pods are the two that all Services share.
var pods = map[string][2]string{
	"local":  {"10.0.0.10", "fd00:10::10"},
	"remote": {"10.1.0.10", "fd00:10::1:0:0:10"},
}

// add adds a Service, its endpoints and the packets to it.
func (t tableGroup) add(g *Group, s tableService) {
	o := &v1.Service{Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPFamily(t.family.String())},
		ClusterIP:             t.address(proxy.ClusterIP, s.number),
		ExternalIPs:           []string{t.address(proxy.ExternalIP, s.number)},
		ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicy(s.etp),
		InternalTrafficPolicy: new(v1.ServiceInternalTrafficPolicy(s.itp)),
		Ports: []v1.ServicePort{{
			Name: "p", Protocol: v1.Protocol(t.protocol.String()), Port: servicePort, NodePort: int32(firstNodePort + s.number),
		}},
	}}
	o.Namespace, o.Name = "tables", fmt.Sprintf("s%d", s.number)
	o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: t.address(proxy.LoadBalancer, s.number)}}
	slice := endpointSlice(o, discoveryv1.AddressType(t.family.String()), int32(firstPodPort+s.number))
	if c := s.layout.local; c != absent {
		slice.Endpoints = append(slice.Endpoints, c.of(endpoint(pods["local"][t.family], nodeName)))
	}
	if c := s.layout.remote; c != absent {
		slice.Endpoints = append(slice.Endpoints, c.of(endpoint(pods["remote"][t.family], "node-b")))
	}
	g.Services, g.Slices = append(g.Services, o), append(g.Slices, slice)
	for _, k := range []proxy.Kind{proxy.ClusterIP, proxy.LoadBalancer, proxy.ExternalIP, proxy.NodePort} {
		for _, from := range t.from {
			if from != FromSelf || s.layout.local != absent {
				g.Cases = append(g.Cases, t.packet(s, k, from))
			}
		}
	}
}

// of puts an endpoint in a condition.
func (c condition) of(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	if c != ready {
		e.Conditions = discoveryv1.EndpointConditions{
			Ready: new(false), Serving: new(c != dead), Terminating: new(c != unready),
		}
	}
	return e
}

// packet returns the case of one frontend and place.
func (t tableGroup) packet(s tableService, k proxy.Kind, from Place) *Case {
	c := &Case{
		ID:    strings.ToLower(fmt.Sprintf("%s-i%s-e%s-%v-from-%s", s.layout.name, s.itp, s.etp, k, from)),
		From:  from,
		Dst:   netip.MustParseAddr(t.address(k, s.number)),
		DPort: servicePort,
		Proto: v1.Protocol(t.protocol.String()),
	}
	if k == proxy.NodePort {
		c.DPort = uint16(firstNodePort + s.number)
	}
	if from == FromSelf {
		c.Src = netip.MustParseAddr(pods["local"][t.family])
	}
	a := t.detection.external(s.etp, s.layout.when, from)
	if k == proxy.ClusterIP {
		a = t.detection.clusterIP(s.itp, s.layout.when, from)
	}
	c.Expect = t.expect(s, a, from)
	return c
}

// expect writes an answer out. A client that is sent to itself is masqueraded
// in any case.
func (t tableGroup) expect(s tableService, a answerFor, from Place) Expect {
	e := Expect{Verdict: a.verdict}
	if a.verdict != proxy.Forward {
		return e
	}
	set := s.layout.cluster
	if a.local {
		set = s.layout.onNode
	}
	for _, which := range set {
		to := netip.AddrPortFrom(netip.MustParseAddr(pods[which][t.family]), uint16(firstPodPort+s.number))
		e.add(to, a.masq || from == FromSelf && which == "local")
	}
	return e
}
