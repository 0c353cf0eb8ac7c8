package resolve

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// text prints values one by one.
func text[T fmt.Stringer](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

func TestNodeIPs(t *testing.T) {
	internal, external := v1.NodeInternalIP, v1.NodeExternalIP
	tests := []struct {
		name      string
		override  []netip.Addr
		addresses []v1.NodeAddress
		want      []string
	}{
		{"none", nil, nil, nil},
		{
			"internal before external", nil,
			[]v1.NodeAddress{{Type: external, Address: "203.0.113.9"}, {Type: internal, Address: "192.168.0.1"}},
			[]string{"192.168.0.1"},
		},
		{"first of each family", nil, []v1.NodeAddress{
			{Type: v1.NodeHostName, Address: "here"},
			{Type: internal, Address: "192.168.0.1"},
			{Type: internal, Address: "192.168.0.2"},
			{Type: internal, Address: "2001:db8::1"},
			{Type: internal, Address: "2001:db8::2"},
		}, []string{"192.168.0.1", "2001:db8::1"}},
		{"IPv6 first", nil, []v1.NodeAddress{
			{Type: internal, Address: "2001:db8::1"},
			{Type: internal, Address: "192.168.0.1"},
		}, []string{"2001:db8::1", "192.168.0.1"}},
		{
			"other family external", nil,
			[]v1.NodeAddress{{Type: internal, Address: "192.168.0.1"}, {Type: external, Address: "2001:db8::1"}},
			[]string{"192.168.0.1", "2001:db8::1"},
		},
		{"override", addrs("10.9.9.9"), []v1.NodeAddress{{Type: internal, Address: "192.168.0.1"}}, []string{"10.9.9.9"}},
		{
			"override of one family", addrs("2001:db8::f"),
			[]v1.NodeAddress{{Type: internal, Address: "192.168.0.1"}},
			[]string{"2001:db8::f", "192.168.0.1"},
		},
		{"override by nothing", addrs("0.0.0.0"), []v1.NodeAddress{{Type: internal, Address: "192.168.0.1"}}, []string{"192.168.0.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := New(Settings{NodeName: testNode, NodeIPs: tt.override})
			n := nodeOf("")
			n.Status.Addresses = tt.addresses
			r.UpdateNode(n)
			r.Update()
			if diff := cmp.Diff(tt.want, text(r.State().Node.IPs)); diff != "" {
				t.Errorf("IPs mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodePorts(t *testing.T) {
	tests := []struct {
		name     string
		by       NodePortAddresses
		ips      []string
		want     []string
		problems int
	}{
		{"unset", NodePortAddresses{}, []string{"192.168.0.1"}, []string{"0.0.0.0/0", "::/0"}, 0},
		{"primary", NodePortAddresses{Primary: true}, []string{"192.168.0.1", "2001:db8::1"}, []string{"192.168.0.1/32", "2001:db8::1/128"}, 0},
		{"primary of one family", NodePortAddresses{Primary: true}, []string{"192.168.0.1"}, []string{"192.168.0.1/32"}, 0},
		{"primary, not known yet", NodePortAddresses{Primary: true}, nil, nil, 1},
		{
			"primary and ranges",
			NodePortAddresses{Primary: true, CIDRs: prefixes("10.0.0.0/8")},
			[]string{"192.168.0.1"},
			[]string{"10.0.0.0/8", "192.168.0.1/32"},
			0, // the node has no IPv6 address, so none is open
		},
		{
			"primary and localhost",
			NodePortAddresses{Primary: true, CIDRs: prefixes("127.0.0.0/8", "::1/128")},
			[]string{"192.168.0.1", "2001:db8::1"},
			[]string{"192.168.0.1/32", "2001:db8::1/128"},
			2,
		},
		{
			"primary and all",
			NodePortAddresses{Primary: true, CIDRs: prefixes("0.0.0.0/0", "::/0")},
			[]string{"192.168.0.1"},
			[]string{"0.0.0.0/0", "::/0"},
			0,
		},
		{"localhost", NodePortAddresses{CIDRs: prefixes("127.0.0.0/8", "::1/128")}, nil, nil, 2},
		{
			"ranges",
			NodePortAddresses{CIDRs: prefixes("192.168.0.0/16", "192.168.1.0/24", "2001:db8::/64")},
			nil,
			[]string{"192.168.0.0/16", "2001:db8::/64"},
			0,
		},
		{"ranges of one family", NodePortAddresses{CIDRs: prefixes("192.168.0.7/16")}, nil, []string{"192.168.0.0/16", "::/0"}, 0},
		{"loopback", NodePortAddresses{CIDRs: prefixes("127.0.0.0/8", "192.168.0.0/16", "::1/128")}, nil, []string{"192.168.0.0/16"}, 2},
		{"loopback with host bits", NodePortAddresses{CIDRs: prefixes("127.0.0.1/4", "::/0")}, nil, []string{"112.0.0.0/4", "::/0"}, 0},
		{"more than loopback", NodePortAddresses{CIDRs: prefixes("0.0.0.0/0", "::/64")}, nil, []string{"0.0.0.0/0", "::/64"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := New(Settings{NodeName: testNode, NodePortAddresses: tt.by})
			r.UpdateNode(nodeOf("", tt.ips...))
			r.Update()
			if diff := cmp.Diff(tt.want, text(r.State().Node.NodePorts)); diff != "" {
				t.Errorf("node port ranges mismatch (-want +got):\n%s", diff)
			}
			if got := problemsOf(r); len(got) != tt.problems {
				t.Errorf("problems %v; want %d", got, tt.problems)
			}
		})
	}
}

// TestNodePortsOnLocalhost opens NodePorts on loopback addresses only: those of IPv4 by
// rules, ::1 by a relay if it is named.
func TestNodePortsOnLocalhost(t *testing.T) {
	for _, tt := range []struct {
		cidrs            string
		localhost, relay bool
		takes            bool // 127.0.0.1
		problems         int
	}{
		{"127.0.0.0/8 ::1/128", true, true, true, 0},
		{"127.0.0.0/8", true, false, true, 0},
		{"::1/128", false, true, false, 0},
		{"0.0.0.0/0 ::/0", true, false, true, 0},
		{"127.0.0.0/8 ::1/128", false, false, false, 2},
	} {
		r := New(Settings{
			NodeName: testNode, LocalhostNodePorts: tt.localhost, RelayLoopback: tt.relay,
			NodePortAddresses: NodePortAddresses{CIDRs: prefixes(strings.Fields(tt.cidrs)...)},
		})
		r.UpdateNode(nodeOf("", "192.168.0.1"))
		r.Update()
		n := r.State().Node
		if n.RelaysLoopback != tt.relay || n.TakesNodePorts(netip.MustParseAddr("127.0.0.1")) != tt.takes ||
			n.TakesNodePorts(netip.IPv6Loopback()) || len(problemsOf(r)) != tt.problems {
			t.Errorf("%+v: relays %t, node ports %v, problems %v", tt, n.RelaysLoopback, n.NodePorts, problemsOf(r))
		}
	}
}

func TestDetector(t *testing.T) {
	podCIDRs := []string{"10.2.0.0/24", "fd00:2::/64", "10.3.0.0/24", "bad"}
	tests := []struct {
		name     string
		settings Settings
		want     proxy.LocalTrafficDetector
	}{
		{
			"ClusterCIDR",
			Settings{LocalPods: proxy.LocalTrafficDetector{Sources: prefixes("fd00:1::/64", "10.1.0.1/16", "10.4.0.0/16")}},
			proxy.LocalTrafficDetector{Sources: prefixes("10.1.0.0/16", "fd00:1::/64")},
		},
		{
			"NodeCIDR",
			Settings{NodeCIDRs: true, LocalPods: proxy.LocalTrafficDetector{Sources: prefixes("10.1.0.0/16")}},
			proxy.LocalTrafficDetector{Sources: prefixes("10.2.0.0/24", "fd00:2::/64")},
		},
		{
			"BridgeInterface",
			Settings{LocalPods: proxy.LocalTrafficDetector{Interface: "cbr0"}},
			proxy.LocalTrafficDetector{Interface: "cbr0"},
		},
		{
			"InterfaceNamePrefix",
			Settings{LocalPods: proxy.LocalTrafficDetector{Interface: "cbr0", IsPrefix: true}},
			proxy.LocalTrafficDetector{Interface: "cbr0", IsPrefix: true},
		},
		{"none", Settings{}, proxy.LocalTrafficDetector{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.settings
			s.NodeName, s.MasqueradeAll = testNode, true
			r := New(s)
			n := nodeOf("")
			n.Spec.PodCIDRs = podCIDRs
			r.UpdateNode(n)
			r.Update()
			if diff := cmp.Diff(tt.want, r.State().Node.LocalPods, byValue); diff != "" {
				t.Errorf("detector mismatch (-want +got):\n%s", diff)
			}
			if !r.State().Node.MasqueradeAll {
				t.Errorf("masquerade-all is lost")
			}
		})
	}
}

// TestNodeMissing names a Node that a cluster must have, until it comes.
func TestNodeMissing(t *testing.T) {
	const missing = "configuration: hostnameOverride: there is no Node here: no endpoint counts as local, its zone and addresses are unknown"
	for _, expected := range []bool{false, true} {
		r := New(Settings{NodeName: testNode, NodeExpected: expected})
		r.Update()
		var want []string
		if expected {
			want = []string{missing}
		}
		wantState(t, r, nil, want)
		if pending := r.UpdateNode(nodeOf("")); pending != expected {
			t.Errorf("a Node that says nothing is pending: %t; want %t", pending, expected)
		}
		r.Update()
		wantState(t, r, nil, nil)
	}
}

// TestNodeEvents tells which events of the Node are steps.
func TestNodeEvents(t *testing.T) {
	r := New(Settings{NodeName: testNode, NodeCIDRs: true})
	if d := r.Update(); d.Node == nil || d.Node.Name != testNode || len(d.Node.NodePorts) != 2 {
		t.Fatalf("first step %+v; want a Node from the settings", d)
	}
	other := nodeOf("z1", "192.168.0.1")
	other.Name = "other"
	if r.UpdateNode(other) {
		t.Errorf("another Node is pending")
	}
	heartbeat := nodeOf("")
	heartbeat.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady}}
	if r.UpdateNode(heartbeat) {
		t.Errorf("a heartbeat is pending")
	}
	withCIDR := nodeOf("")
	withCIDR.Spec.PodCIDR = "10.2.0.0/24"
	if !r.UpdateNode(withCIDR) || r.UpdateNode(heartbeat) {
		t.Errorf("a pod range must be pending until it is taken back")
	}
	r.UpdateNode(withCIDR)
	if d := r.Update(); d.Node == nil || len(d.Node.LocalPods.Sources) != 1 {
		t.Errorf("step %+v; want a Node with a pod range", d)
	}
	r.UpdateNode(nil)
	if d := r.Update(); !d.Empty() {
		t.Errorf("deletion makes a step %+v", d)
	}
}
