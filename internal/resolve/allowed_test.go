package resolve

import (
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
)

// TestAllowedAddresses checks that Services do not get addresses that the configuration
// does not allow, and that no other Service loses an address to them.
func TestAllowedAddresses(t *testing.T) {
	in := func(texts ...string) []netip.Prefix {
		out := []netip.Prefix{}
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	row := func(more string) []string {
		return []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + more + plain}
	}
	for _, tt := range []struct {
		name     string
		allowed  apiobject.Allowed
		edit     []func(*v1.Service)
		rows     []string
		problems []string
	}{
		{
			"everything",
			apiobject.Allowed{},
			[]func(*v1.Service){externalIPs("192.0.2.1"), loadBalancer("203.0.113.1")},
			row(" LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80"), nil,
		},
		{
			"nothing",
			apiobject.Allowed{ExternalIPs: in(), LoadBalancerIPs: in()},
			[]func(*v1.Service){externalIPs("192.0.2.1"), loadBalancer("203.0.113.1"), nodePort(30080)},
			row(" NodePort=0.0.0.0:30080"),
			[]string{
				"Service ns/web: spec.externalIPs[0]: 192.0.2.1 is not within --allowed-external-ips; it is left out",
				"Service ns/web: status.loadBalancer.ingress[0].ip: 203.0.113.1 is not within --allowed-load-balancer-ips; it is left out",
			},
		},
		{
			"ranges",
			apiobject.Allowed{ExternalIPs: in("192.0.2.0/31", "2001:db8::/32")},
			[]func(*v1.Service){externalIPs("::ffff:192.0.2.1", "192.0.2.2", "192.000.002.000"), loadBalancer("203.0.113.1")},
			row(" LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80 ExternalIP=192.0.2.0:80"),
			[]string{"Service ns/web: spec.externalIPs[1]: 192.0.2.2 is not within --allowed-external-ips; it is left out"},
		},
		{
			"by another kind",
			apiobject.Allowed{ExternalIPs: in("192.0.2.0/24"), LoadBalancerIPs: in("203.0.113.0/24")},
			[]func(*v1.Service){externalIPs("192.0.2.1", "203.0.113.1"), loadBalancer("192.0.2.1", "203.0.113.1")},
			row(" LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80"),
			[]string{"Service ns/web: status.loadBalancer.ingress[0].ip: 192.0.2.1 is not within --allowed-load-balancer-ips; it is left out"},
		},
		{
			"own ClusterIP", apiobject.Allowed{ExternalIPs: in()}, []func(*v1.Service){externalIPs("10.96.0.1")}, row(""), nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := New(Settings{Allowed: tt.allowed})
			add(t, r, serviceOf("ns/web", "10.96.0.1", tt.edit...))
			r.Update()
			wantState(t, r, tt.rows, tt.problems)
		})
	}
}

// TestDenied finds the Services that claim an address which is not allowed.
func TestDenied(t *testing.T) {
	r := New(Settings{Allowed: apiobject.Allowed{ExternalIPs: []netip.Prefix{}}})
	thief, addr := serviceOf("ns/thief", "10.96.0.1", externalIPs("8.8.8.8")), netip.MustParseAddr("8.8.8.8")
	add(t, r, thief, serviceOf("ns/second", "10.96.0.2", externalIPs("192.0.2.1", "8.8.8.8")), serviceOf("ns/none", "10.96.0.3"))
	r.Update()
	var got []string
	for _, p := range r.Denied(addr) {
		got = append(got, p.Object+" "+p.Field)
	}
	if want := []string{"Service ns/second spec.externalIPs[1]", "Service ns/thief spec.externalIPs[0]"}; !slices.Equal(got, want) {
		t.Errorf("denied %q, want %q", got, want)
	}
	r.Services.Update(thief, nil)
	r.Update()
	if got := r.Denied(addr); len(got) != 1 {
		t.Errorf("denied %v after one is gone", got)
	}
}
