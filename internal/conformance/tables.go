package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// The two decision tables, written out as they are specified. Nothing here is derived from the code
// under test.

// tableRow is a row of a decision table: the result for local pods, for the node itself and for
// other clients. A result is a verdict, or the set of endpoints that a packet goes to, followed by
// "masq" if it is masqueraded.
type tableRow struct{ pods, node, others string }

// situation is the key of a row: a traffic policy, and where usable endpoints are: here (and
// possibly elsewhere), elsewhere only, or nowhere.
type situation struct{ policy, usable string }

// clusterIPTable holds for ClusterIPs, by internal traffic policy.
var clusterIPTable = map[situation]tableRow{
	{"Cluster", "here"}:      {"cluster", "cluster masq", "cluster masq"},
	{"Cluster", "elsewhere"}: {"cluster", "cluster masq", "cluster masq"},
	{"Cluster", "nowhere"}:   {"reject", "reject", "reject"},
	{"Local", "here"}:        {"local", "local masq", "local masq"},
	{"Local", "elsewhere"}:   {"drop", "drop", "drop"},
	{"Local", "nowhere"}:     {"reject", "reject", "reject"},
}

// externalTable holds for external IPs, load-balancer addresses and NodePorts, by external traffic
// policy.
var externalTable = map[situation]tableRow{
	{"Cluster", "here"}:      {"cluster masq", "cluster masq", "cluster masq"},
	{"Cluster", "elsewhere"}: {"cluster masq", "cluster masq", "cluster masq"},
	{"Cluster", "nowhere"}:   {"reject", "reject", "reject"},
	{"Local", "here"}:        {"cluster", "cluster masq", "local"},
	{"Local", "elsewhere"}:   {"cluster", "cluster masq", "drop"},
	{"Local", "nowhere"}:     {"reject", "reject", "reject"},
}

// layout is one arrangement of two endpoints, one on this node and one on another.
type layout struct {
	name          string
	local, remote string            // the condition of the endpoint; empty means no endpoint
	usable        string            // situation.usable
	sets          map[string]string // the endpoints in the cluster and the local set
}

// layouts are all arrangements that matter. The cluster set and the local set each fall back to
// terminating endpoints independently.
var layouts = []layout{
	{"both", "ready", "ready", "here", map[string]string{"cluster": "local remote", "local": "local"}},
	{"only-local", "ready", "", "here", map[string]string{"cluster": "local", "local": "local"}},
	{"only-remote", "", "ready", "elsewhere", map[string]string{"cluster": "remote"}},
	{"local-leaving", "leaving", "ready", "here", map[string]string{"cluster": "remote", "local": "local"}},
	{"remote-leaving", "ready", "leaving", "here", map[string]string{"cluster": "local", "local": "local"}},
	{"all-leaving", "leaving", "leaving", "here", map[string]string{"cluster": "local remote", "local": "local"}},
	{"only-remote-leaving", "", "leaving", "elsewhere", map[string]string{"cluster": "remote"}},
	{"local-unready", "unready", "ready", "elsewhere", map[string]string{"cluster": "remote"}},
	{"unusable", "unready", "dead", "nowhere", nil},
	{"none", "", "", "nowhere", nil},
}

var conditions = map[string]discoveryv1.EndpointConditions{
	"ready":    {},
	"leaving":  {Ready: new(false), Serving: new(true), Terminating: new(true)},
	"dead":     {Ready: new(false), Serving: new(false), Terminating: new(true)},
	"unready":  {Ready: new(false), Serving: new(true), Terminating: new(false)},
	"starting": {Ready: new(false)},
	"failing":  {Ready: new(false), Serving: new(false), Terminating: new(false)},
}

// detections are all ways to recognise local pods.
var detections = []Config{
	{DetectLocal: "cluster-cidr"},
	{DetectLocal: "node-cidr"},
	{DetectLocal: "bridge"},
	{DetectLocal: "prefix"},
	{DetectLocal: "none"},
	{DetectLocal: "cluster-cidr", MasqueradeAll: true},
	{DetectLocal: "none", MasqueradeAll: true},
}

// answer looks up the result for a frontend kind and a client, and whether the packet is
// masqueraded.
func (s *tableService) answer(k proxy.Kind, from Place) (to string, masq bool) {
	row := externalTable[situation{s.etp, s.layout.usable}]
	if k == proxy.ClusterIP {
		row = clusterIPTable[situation{s.itp, s.layout.usable}]
	}
	off := s.detection.DetectLocal == "none" // no client is recognised as a local pod
	to = row.pods
	switch {
	case from == FromNode:
		to = row.node
	case off, from == FromOutside, from == FromRemotePod && s.detection.DetectLocal != "cluster-cidr":
		to = row.others
	}
	to, masq = strings.CutSuffix(to, " masq")
	// MasqueradeAll applies to ClusterIPs only. Likewise only ClusterIP traffic is left without
	// masquerading when local pods are not recognised.
	if k == proxy.ClusterIP {
		masq = s.detection.MasqueradeAll || masq && !off
	}
	return to, masq
}

// tableGroup describes a group generated from the decision tables: every layout and pair of
// policies is a Service, and each of its frontends is reached from every place.
type tableGroup struct {
	detection Config
	family    proxy.Family
	protocol  proxy.Protocol
	layouts   []layout
	from      []Place
}

// decisionTables returns the groups generated from the decision tables.
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
		// Detection of local pods does not depend on the protocol, so one protocol per family is
		// enough.
		protocol := [...]proxy.Protocol{proxy.IPv4: proxy.TCP, proxy.IPv6: proxy.UDP}[f]
		for _, d := range detections[1:] {
			out = append(out, tableGroup{d, f, protocol, few, everyone}.group())
		}
	}
	return out
}

func (t tableGroup) group() *Group {
	name := t.detection.DetectLocal
	if t.detection.MasqueradeAll {
		name += "-masquerade-all"
	}
	g := &Group{ID: fmt.Sprintf("table-%s-%v-%v", name, t.family, t.protocol), World: World{Config: t.detection}}
	policies := []string{"Cluster", "Local"}
	for _, l := range t.layouts {
		for _, itp := range policies {
			for _, etp := range policies {
				s := &tableService{tableGroup: t, layout: l, itp: itp, etp: etp, number: len(g.Services) + 1}
				s.addTo(g)
			}
		}
	}
	return g
}

// tableService is one Service of a generated group.
type tableService struct {
	tableGroup
	layout   layout
	itp, etp string
	number   int
}

// The port of every Service, and the bases of the pod ports and node ports that identify a Service.
const (
	servicePort   = 80
	firstPodPort  = 8000
	firstNodePort = 30000
)

// frontends are the address formats by kind and family; the argument is the Service's number.
var frontends = map[proxy.Kind][2]string{
	proxy.ClusterIP:    {"172.30.10.%d", "fd00:172:30::a%02x"},
	proxy.LoadBalancer: {"198.18.0.%d", "2001:db8:18::%x"},
	proxy.ExternalIP:   {"192.168.77.%d", "2001:db8:77::%x"},
}

func (s *tableService) address(k proxy.Kind) string {
	if k == proxy.NodePort {
		return clients[FromNode].addrs[s.family]
	}
	return fmt.Sprintf(frontends[k][s.family], s.number)
}

// pods are the two pods that all Services share.
var pods = map[string][2]string{
	"local":  {"10.0.0.10", "fd00:10::10"},
	"remote": {"10.1.0.10", "fd00:10::1:0:0:10"},
}

func (s *tableService) addTo(g *Group) {
	o := &v1.Service{Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPFamily(s.family.String())},
		ClusterIP:             s.address(proxy.ClusterIP),
		ExternalIPs:           []string{s.address(proxy.ExternalIP)},
		ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicy(s.etp),
		InternalTrafficPolicy: new(v1.ServiceInternalTrafficPolicy(s.itp)),
		Ports: []v1.ServicePort{{
			Name: "p", Protocol: v1.Protocol(s.protocol.String()), Port: servicePort, NodePort: int32(firstNodePort + s.number),
		}},
	}}
	o.Namespace, o.Name = "tables", fmt.Sprintf("s%d", s.number)
	o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: s.address(proxy.LoadBalancer)}}
	slice := endpointSlice(o, s.family, int32(firstPodPort+s.number))
	for _, e := range []struct{ pod, condition, node string }{
		{"local", s.layout.local, nodeName}, {"remote", s.layout.remote, "node-b"},
	} {
		if e.condition != "" {
			slice.Endpoints = append(slice.Endpoints, endpoint(pods[e.pod][s.family], e.node, conditions[e.condition]))
		}
	}
	g.Services, g.Slices = append(g.Services, o), append(g.Slices, slice)
	for _, k := range []proxy.Kind{proxy.ClusterIP, proxy.LoadBalancer, proxy.ExternalIP, proxy.NodePort} {
		for _, from := range s.from {
			if from != FromSelf || s.layout.local != "" {
				g.Cases = append(g.Cases, s.packet(k, from))
			}
		}
	}
}

// packet returns the case of one frontend and one client. A client that reaches itself is always
// masqueraded.
func (s *tableService) packet(k proxy.Kind, from Place) *Case {
	c := &Case{
		ID:    strings.ToLower(fmt.Sprintf("%s-i%s-e%s-%v-from-%s", s.layout.name, s.itp, s.etp, k, from)),
		From:  from,
		Dst:   netip.MustParseAddr(s.address(k)),
		DPort: servicePort,
		Proto: v1.Protocol(s.protocol.String()),
	}
	if k == proxy.NodePort {
		c.DPort = uint16(firstNodePort + s.number)
	}
	if from == FromSelf {
		c.Src = netip.MustParseAddr(pods["local"][s.family])
	}
	to, masq := s.answer(k, from)
	if v, ok := verdicts[to]; ok {
		c.Expect.Verdict = v
		return c
	}
	c.Expect = Expect{proxy.Forward, map[netip.AddrPort]bool{}}
	for _, pod := range strings.Fields(s.layout.sets[to]) {
		a := netip.AddrPortFrom(netip.MustParseAddr(pods[pod][s.family]), uint16(firstPodPort+s.number))
		c.Expect.To[a] = masq || from == FromSelf && pod == "local"
	}
	return c
}
