package proxy

import (
	"fmt"
	"net/netip"
	"testing"
)

// outcomeState is a node with a Service of every kind of address.
func outcomeState() *State {
	ap := netip.MustParseAddrPort
	key := func(name string, p Protocol, f Family) PortKey {
		return PortKey{ServicePortName{"ns", name, "", p}, f}
	}
	rows := []*ServicePort{
		{
			Key: key("web", TCP, IPv4),
			Frontends: []Frontend{
				{ClusterIP, ap("10.96.0.1:80")},
				{LoadBalancer, ap("203.0.113.1:80")},
				{ExternalIP, ap("192.0.2.1:80")},
				{NodePort, ap("0.0.0.0:30080")},
			},
			Cluster: []Endpoint{
				{Addr: ap("10.1.0.1:8080"), Local: true}, {Addr: ap("10.1.9.2:8080")}, {Addr: ap("10.1.9.3:8080"), NodeUnknown: true},
			},
			Local:           []Endpoint{{Addr: ap("10.1.0.1:8080"), Local: true}},
			External:        ScopeLocal,
			UsableSomewhere: true,
			AllowFrom:       []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		},
		{
			Key:       key("empty", TCP, IPv4),
			Frontends: []Frontend{{ClusterIP, ap("10.96.0.2:80")}, {LoadBalancer, ap("203.0.113.2:80")}},
			AllowFrom: []netip.Prefix{},
		},
		{
			Key:             key("remote", TCP, IPv4),
			Frontends:       []Frontend{{ExternalIP, ap("192.0.2.3:80")}},
			Cluster:         []Endpoint{{Addr: ap("10.1.9.4:8080")}},
			External:        ScopeLocal,
			UsableSomewhere: true,
		},
		{
			Key:             key("exact", TCP, IPv4),
			Frontends:       []Frontend{{ExternalIP, ap("192.168.0.1:30080")}},
			Cluster:         []Endpoint{{Addr: ap("10.1.9.9:9")}},
			UsableSomewhere: true,
		},
		{
			Key:             key("web", TCP, IPv6),
			Frontends:       []Frontend{{ClusterIP, ap("[fd00::1]:80")}},
			Cluster:         []Endpoint{{Addr: ap("[fd00:1::1]:8080")}},
			UsableSomewhere: true,
		},
		{
			Key:             key("dns", UDP, IPv4),
			Frontends:       []Frontend{{ClusterIP, ap("10.96.0.53:53")}, {NodePort, ap("0.0.0.0:30053")}},
			Cluster:         []Endpoint{{Addr: ap("10.1.0.5:53"), Local: true}},
			UsableSomewhere: true,
		},
	}
	s := NewState()
	for _, row := range rows {
		s.Rows[row.Key] = row
	}
	s.Node = &Node{
		Name:      "here",
		LocalPods: LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24"), netip.MustParsePrefix("127.0.0.0/8")},
	}
	s.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	return s
}

func TestOutcome(t *testing.T) {
	state := outcomeState()
	const all = "10.1.0.1:8080 10.1.9.2:8080 10.1.9.3:8080"
	tests := []struct {
		name  string
		proto Protocol
		src   string
		dst   string
		node  bool // the node sent it
		here  bool // the destination is the node's
		want  string
		why   Reason
	}{
		{"pod to ClusterIP", TCP, "10.1.0.7", "10.96.0.1:80", false, false, all, Forwarded},
		{"node to ClusterIP", TCP, "192.168.0.1", "10.96.0.1:80", true, false, "10.1.0.1:8080* 10.1.9.2:8080* 10.1.9.3:8080*", Forwarded},
		{"outside to ClusterIP", TCP, "198.51.100.7", "10.96.0.1:80", false, false, "10.1.0.1:8080* 10.1.9.2:8080* 10.1.9.3:8080*", Forwarded},
		{"hairpin", TCP, "10.1.0.1", "10.96.0.1:80", false, false, "10.1.0.1:8080* 10.1.9.2:8080 10.1.9.3:8080", Forwarded},
		{"hairpin of an endpoint of unknown place", TCP, "10.1.9.3", "10.96.0.1:80", false, false, "10.1.0.1:8080 10.1.9.2:8080 10.1.9.3:8080*", Forwarded},
		{"no hairpin on another node", TCP, "10.1.9.2", "10.96.0.1:80", false, false, all, Forwarded},
		{"hairpin by an external address", TCP, "10.1.0.1", "192.0.2.1:80", false, false, "10.1.0.1:8080* 10.1.9.2:8080 10.1.9.3:8080", Forwarded},
		{"IPv6", TCP, "fd00:1::7", "[fd00::1]:80", false, false, "[fd00:1::1]:8080", Forwarded},
		{"UDP", UDP, "10.1.0.7", "10.96.0.53:53", false, false, "10.1.0.5:53", Forwarded},
		{"outside to external IP", TCP, "198.51.100.7", "192.0.2.1:80", false, false, "10.1.0.1:8080", Forwarded},
		{"outside to LoadBalancer, allowed", TCP, "198.51.100.7", "203.0.113.1:80", false, false, "10.1.0.1:8080", Forwarded},
		{"outside to LoadBalancer, not allowed", TCP, "198.51.101.7", "203.0.113.1:80", false, false, "drop", SourceRange},
		{"pods are not allowed by being pods", TCP, "10.1.0.7", "203.0.113.1:80", false, false, "drop", SourceRange},
		{"nobody is allowed", TCP, "198.51.100.7", "203.0.113.2:80", false, false, "drop", SourceRange},
		{"ranges guard LoadBalancers only", TCP, "198.51.101.7", "192.0.2.1:80", false, false, "10.1.0.1:8080", Forwarded},
		{"no endpoint here", TCP, "198.51.100.7", "192.0.2.3:80", false, false, "drop", NoLocalEndpoint},
		{"no endpoint here for a pod", TCP, "10.1.0.7", "192.0.2.3:80", false, false, "10.1.9.4:8080", Forwarded},
		{"no endpoints", TCP, "10.1.0.7", "10.96.0.2:80", false, false, "reject", NoEndpoints},
		{"NodePort", TCP, "198.51.100.7", "192.168.0.2:30080", false, true, "10.1.0.1:8080", Forwarded},
		{"NodePort from a pod", TCP, "10.1.0.7", "192.168.0.2:30080", false, true, all, Forwarded},
		{"NodePort from the node", TCP, "192.168.0.2", "192.168.0.2:30080", true, true, "10.1.0.1:8080* 10.1.9.2:8080* 10.1.9.3:8080*", Forwarded},
		{"an exact address before a NodePort", TCP, "198.51.100.7", "192.168.0.1:30080", false, true, "10.1.9.9:9*", Forwarded},
		{"NodePort of another node", TCP, "198.51.100.7", "192.168.0.3:30080", false, false, "untouched", NoSuchFrontend},
		{"NodePort on an address without", TCP, "198.51.100.7", "192.168.1.1:30080", false, true, "untouched", NodePortClosedHere},
		{"NodePort on loopback", TCP, "127.0.0.1", "127.0.0.1:30080", true, true, "untouched", NodePortClosedHere},
		{"NodePort of another protocol", UDP, "198.51.100.7", "192.168.0.2:30080", false, true, "untouched", NoSuchFrontend},
		{"other port of a ClusterIP", TCP, "10.1.0.7", "10.96.0.1:81", false, false, "reject", PortNotOfService},
		{"other protocol of a ClusterIP", SCTP, "10.1.0.7", "10.96.0.1:80", false, false, "reject", PortNotOfService},
		{"other port of an external IP", TCP, "10.1.0.7", "192.0.2.1:81", false, false, "untouched", NoSuchFrontend},
		{"address of no Service", TCP, "10.1.0.7", "10.96.7.7:80", false, false, "drop", UnallocatedAddress},
		{"address of no Service that is the node's", TCP, "10.1.0.7", "10.96.7.7:80", false, true, "untouched", NoSuchFrontend},
		{"the node to its own address of no Service", TCP, "192.168.0.1", "10.96.7.7:80", true, true, "drop", UnallocatedAddress},
		{"other port of a ClusterIP that is the node's", TCP, "10.1.0.7", "10.96.0.1:81", false, true, "untouched", NoSuchFrontend},
		{"the node to another port of its own ClusterIP", TCP, "192.168.0.1", "10.96.0.1:81", true, true, "reject", PortNotOfService},
		{"pod to pod", TCP, "10.1.0.7", "10.1.0.8:80", false, false, "untouched", NoSuchFrontend},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Packet{
				Protocol: tt.proto, Src: netip.MustParseAddr(tt.src), Dst: netip.MustParseAddrPort(tt.dst),
				SrcLocal: tt.node, DstLocal: tt.here,
			}
			o := state.Outcome(p)
			if got := describeOutcome(o); got != tt.want || o.Reason != tt.why {
				t.Errorf("%+v: %s, %v; want %s, %v", p, got, o.Reason, tt.want, tt.why)
			}
			if o.Origin != state.Node.Origin(p) || (o.Reason == NoSuchFrontend || o.Reason == UnallocatedAddress) != (o.Row == nil) {
				t.Errorf("%+v: origin %v, row %v", p, o.Origin, o.Row)
			}
		})
	}
}

// describeOutcome lists the endpoints, starred when the client is hidden, or
// says the verdict.
func describeOutcome(o Outcome) string {
	if o.Verdict != Forward {
		return o.Verdict.String()
	}
	s := ""
	for i, b := range o.Backends {
		if i > 0 {
			s += " "
		}
		s += b.Addr.String()
		if b.Masquerade {
			s += "*"
		}
	}
	return s
}

// TestOrigin distinguishes pods of this node, the node itself and other clients.
func TestOrigin(t *testing.T) {
	bySource := &Node{LocalPods: LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	byName := &Node{LocalPods: LocalTrafficDetector{Interface: "cbr0"}}
	byPrefix := &Node{LocalPods: LocalTrafficDetector{Interface: "veth", IsPrefix: true}}
	tests := []struct {
		node  *Node
		src   string
		in    string
		local bool
		want  Origin
	}{
		{bySource, "10.1.0.7", "eth0", false, OurPod},
		{bySource, "10.1.0.1", "", true, OurPod},
		{bySource, "192.168.0.1", "", true, ThisNode},
		{bySource, "198.51.100.7", "cbr0", false, Elsewhere},
		{byName, "10.1.0.7", "cbr0", false, OurPod},
		{byName, "10.1.0.7", "cbr01", false, Elsewhere},
		{byName, "192.168.0.1", "", true, ThisNode},
		{byPrefix, "10.1.0.7", "veth1234", false, OurPod},
		{byPrefix, "10.1.0.7", "eth0", false, Elsewhere},
		{&Node{}, "10.1.0.7", "eth0", false, Elsewhere},
		{&Node{}, "10.1.0.7", "", true, ThisNode},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v/%s/%s", tt.node.LocalPods, tt.src, tt.in), func(t *testing.T) {
			got := tt.node.Origin(Packet{Src: netip.MustParseAddr(tt.src), In: tt.in, SrcLocal: tt.local})
			if got != tt.want {
				t.Errorf("origin %v; want %v", got, tt.want)
			}
		})
	}
}
