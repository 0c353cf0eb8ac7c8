package resolve

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestSourceRanges(t *testing.T) {
	const open = "spec.loadBalancerSourceRanges: no %s range: the %s LoadBalancer addresses are open to everyone"
	tests := []struct {
		name     string
		service  *v1.Service
		want     string // of the IPv4 row; empty: everyone
		problems []string
	}{
		{"none", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1")), "", nil},
		{"no VIP", serviceOf("ns/web", "10.96.0.1", loadBalancer(), ranges("198.51.100.0/24")), "", nil},
		{"one", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("198.51.100.0/24")), "[198.51.100.0/24]", nil},
		{
			"blanks, zeros and host bits",
			serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"),
				ranges(" 198.51.100.7/24", "010.0.0.0/08\t")), "[10.0.0.0/8 198.51.100.0/24]", nil,
		},
		{"outermost", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"),
			ranges("10.1.0.0/16", "10.0.0.0/8", "10.1.0.0/16")), "[10.0.0.0/8]", nil},
		{"all", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("198.51.100.0/24", "0.0.0.0/0")), "", nil},
		{"all of the other family", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"),
			ranges("198.51.100.0/24", "::/0")), "[198.51.100.0/24]", nil},
		{
			"other family only", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("2001:db8::/32")), "",
			[]string{"Service ns/web: " + strings.ReplaceAll(open, "%s", "IPv4")},
		},
		{"other family only, no VIP", serviceOf("ns/web", "10.96.0.1", loadBalancer(), ranges("2001:db8::/32")), "", nil},
		{
			"one unreadable", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("198.51.100.0/24", "bad")), "[198.51.100.0/24]",
			[]string{`Service ns/web: spec.loadBalancerSourceRanges[1]: "bad" is not a CIDR range such as 10.0.0.0/8 or fd00::/8`},
		},
		{
			"all unreadable", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("198.51.100.0/33")), "[]",
			[]string{
				"Service ns/web: spec.loadBalancerSourceRanges: no readable IPv4 range: the IPv4 LoadBalancer addresses are closed to everyone",
				`Service ns/web: spec.loadBalancerSourceRanges[0]: "198.51.100.0/33" is not a CIDR range such as 10.0.0.0/8 or fd00::/8`,
			},
		},
		{
			"mapped", serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"),
				ranges("198.51.100.0/24", "::ffff:10.0.0.0/104")), "[10.0.0.0/8 198.51.100.0/24]", nil,
		},
		{
			"the node is allowed", serviceOf("ns/web", "10.96.0.1",
				loadBalancer("203.0.113.1", "203.0.113.2", "2001:db8::1"), ranges("192.168.0.0/24")),
			"[192.168.0.0/24 203.0.113.1/32 203.0.113.2/32]", nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, nodeOf("", "192.168.0.1", "2001:db8::9"), tt.service)
			want := "ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80"
			for _, in := range tt.service.Status.LoadBalancer.Ingress {
				if !strings.Contains(in.IP, ":") {
					want += " LoadBalancer=" + in.IP + ":80"
				}
			}
			want += plain
			if tt.want != "" {
				want += " from=" + tt.want
			}
			wantState(t, r, []string{want}, tt.problems)
		})
	}
}

// TestNodeIPChange follows the node's address in the exception for the node.
func TestNodeIPChange(t *testing.T) {
	r := resolverOf(t, nodeOf("", "192.168.0.1"), serviceOf("ns/api", "10.96.0.2"),
		serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges("192.168.0.0/24")))
	r.UpdateNode(nodeOf("", "192.168.1.1"))
	d := r.Update()
	if d.Node == nil || len(d.Upserts) != 1 || len(d.Upserts[0].New.AllowFrom) != 1 {
		t.Errorf("step %+v; want a Node, and one row without the exception", d)
	}
}

// TestSourceRangesOfIPv6 adds the exception with an IPv6 address's length.
func TestSourceRangesOfIPv6(t *testing.T) {
	r := resolverOf(t, nodeOf("", "2001:db8::9"), serviceOf("ns/web", "fd00::1", loadBalancer("2001:db8:1::1"), ranges("2001:db8::/64")))
	got := rowNamed(t, r.State(), "ns/web:http/TCP/IPv6").AllowFrom
	if len(got) != 2 || got[1].String() != "2001:db8:1::1/128" {
		t.Errorf("allowed %v; want the range and 2001:db8:1::1/128", got)
	}
}

// TestSourceRangesClose goes from everyone to nobody and back.
func TestSourceRangesClose(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1")))
	for _, step := range []struct {
		ranges []string
		open   bool
	}{{[]string{"bad"}, false}, {nil, true}} {
		add(t, r, serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"), ranges(step.ranges...)))
		if d := r.Update(); len(d.Upserts) != 1 || (d.Upserts[0].New.AllowFrom == nil) != step.open {
			t.Errorf("ranges %q: step %+v; want one row, open: %t", step.ranges, d, step.open)
		}
	}
}
