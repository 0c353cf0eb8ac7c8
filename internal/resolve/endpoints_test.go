package resolve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// web is how the row of TestEndpoints begins.
const web = "ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 internal=Cluster external=Cluster "

func TestEndpoints(t *testing.T) {
	noPort := `Service ns/web: spec.ports[0].name: no IPv4 EndpointSlice has a TCP port named "http"`
	edited := func(edit func(*discoveryv1.EndpointSlice)) []any {
		s := sliceOf("ns/web-1", "web", endpointOf("10.1.0.1"))
		edit(s)
		return []any{s}
	}
	portEdited := func(edit func(*discoveryv1.EndpointPort)) []any {
		return edited(func(s *discoveryv1.EndpointSlice) { edit(&s.Ports[0]) })
	}
	tests := []struct {
		name     string
		slices   []any
		want     string
		problems []string
	}{
		{"none", nil, "anywhere=false cluster=[] local=[]", nil},
		{"empty slice", []any{sliceOf("ns/web-1", "web")}, "anywhere=false cluster=[] local=[]", nil},
		{
			"union",
			[]any{sliceOf("ns/web-2", "web", endpointOf("10.1.0.2")), sliceOf("ns/web-1", "web", endpointOf("10.1.0.1"))},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[]", nil,
		},
		{"of another Service", []any{sliceOf("ns/web-1", "api", endpointOf("10.1.0.1"))}, "anywhere=false cluster=[] local=[]", nil},
		{"of another namespace", []any{sliceOf("other/web-1", "web", endpointOf("10.1.0.1"))}, "anywhere=false cluster=[] local=[]", nil},
		{
			"no label", edited(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }), "anywhere=false cluster=[] local=[]", nil,
		},
		{
			"FQDN", edited(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
			"anywhere=false cluster=[] local=[]", nil,
		},
		{
			"address type of a time to come", edited(func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv8" }),
			"anywhere=false cluster=[] local=[]",
			[]string{`EndpointSlice ns/web-1: addressType: "IPv8" is not IPv4 or IPv6`},
		},
		{"other family", []any{sliceOf("ns/web-1", "web", endpointOf("fd00:1::1"))}, "anywhere=false cluster=[] local=[]", nil},
		{
			"port name nil", portEdited(func(p *discoveryv1.EndpointPort) { p.Name = nil }),
			"anywhere=false cluster=[] local=[]",
			[]string{noPort},
		},
		{"port nil", portEdited(func(p *discoveryv1.EndpointPort) { p.Port = nil }), "anywhere=false cluster=[] local=[]", []string{noPort}},
		{
			"port 0", portEdited(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(0)) }), "anywhere=false cluster=[] local=[]",
			[]string{"EndpointSlice ns/web-1: ports[0].port: 0 is not a port (1 to 65535)", noPort},
		},
		{
			"port 70000", portEdited(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(70000)) }), "anywhere=false cluster=[] local=[]",
			[]string{"EndpointSlice ns/web-1: ports[0].port: 70000 is not a port (1 to 65535)", noPort},
		},
		{
			"protocol nil", portEdited(func(p *discoveryv1.EndpointPort) { p.Protocol = nil }),
			"anywhere=true cluster=[10.1.0.1:8080] local=[]", nil,
		},
		{
			"other protocol", portEdited(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.ProtocolUDP) }),
			"anywhere=false cluster=[] local=[]",
			[]string{noPort},
		},
		{
			"unknown protocol", portEdited(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.Protocol("X")) }),
			"anywhere=false cluster=[] local=[]",
			[]string{`EndpointSlice ns/web-1: ports[0].protocol: "X" is not TCP, UDP or SCTP`, noPort},
		},
		{
			"other port name", portEdited(func(p *discoveryv1.EndpointPort) { p.Name = new("www") }),
			"anywhere=false cluster=[] local=[]",
			[]string{noPort},
		},
		{
			"bad addresses",
			[]any{sliceOf("ns/web-1", "web", endpointOf("10.1.0.1"), endpointOf("fd00:1::1"), endpointOf("x"),
				endpointOf("::ffff:10.1.0.9"), discoveryv1.Endpoint{}, endpointOf("0.0.0.0"), endpointOf("10.1.0.002"))},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[]",
			[]string{
				`EndpointSlice ns/web-1: endpoints[1].addresses[0]: fd00:1::1 is not an IPv4 address, but addressType requires one; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[2].addresses[0]: "x" is not an IP address; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[3].addresses[0]: ::ffff:10.1.0.9 is an IPv4-mapped IPv6 address; write 10.1.0.9; the endpoint is left out`,
				"EndpointSlice ns/web-1: endpoints[4].addresses: is empty; the endpoint is left out",
				`EndpointSlice ns/web-1: endpoints[5].addresses[0]: 0.0.0.0 is not the address of a single host; the endpoint is left out`,
			},
		},
		{
			"addresses that lead to other hosts than they seem to",
			[]any{sliceOf("ns/web-1", "web", endpointOf("127.0.0.1"), endpointOf("127.255.255.254"), endpointOf("169.254.169.254"),
				endpointOf("224.0.0.251"), endpointOf("239.1.1.1"), endpointOf("255.255.255.255"), endpointOf("192.0.2.10"), endpointOf("240.0.0.1"))},
			"anywhere=true cluster=[192.0.2.10:8080 240.0.0.1:8080] local=[]",
			[]string{
				`EndpointSlice ns/web-1: endpoints[0].addresses[0]: 127.0.0.1 is a loopback address, which other hosts cannot reach; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[1].addresses[0]: 127.255.255.254 is a loopback address, which other hosts cannot reach; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[2].addresses[0]: 169.254.169.254 is a link-local address, which traffic is not forwarded to; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[3].addresses[0]: 224.0.0.251 is not the address of a single host; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[4].addresses[0]: 239.1.1.1 is not the address of a single host; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[5].addresses[0]: 255.255.255.255 is not the address of a single host; the endpoint is left out`,
			},
		},
		{
			"the same of IPv6",
			[]any{sliceOf("ns/web-1", "web", endpointOf("::1"), endpointOf("fe80::1"), endpointOf("ff02::1"), endpointOf("::"))},
			"anywhere=false cluster=[] local=[]",
			[]string{
				`EndpointSlice ns/web-1: endpoints[0].addresses[0]: ::1 is a loopback address, which other hosts cannot reach; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[1].addresses[0]: fe80::1 is a link-local address, which traffic is not forwarded to; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[2].addresses[0]: ff02::1 is not the address of a single host; the endpoint is left out`,
				`EndpointSlice ns/web-1: endpoints[3].addresses[0]: :: is not the address of a single host; the endpoint is left out`,
			},
		},
		{
			"its own ClusterIP",
			[]any{sliceOf("ns/web-1", "web", endpointOf("10.96.0.1"), endpointOf("10.96.0.2"))},
			"anywhere=true cluster=[10.96.0.2:8080] local=[]",
			[]string{"Service ns/web: spec.clusterIP: 10.96.0.1 is also an endpoint of the Service; the endpoint is left out"},
		},
		{
			"first address only",
			[]any{sliceOf("ns/web-1", "web", discoveryv1.Endpoint{Addresses: []string{"10.1.0.1", "10.1.0.2"}})},
			"anywhere=true cluster=[10.1.0.1:8080] local=[]", nil,
		},
		{"port numbers by slice", []any{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1")),
			edited(func(s *discoveryv1.EndpointSlice) {
				s.Name, s.Ports = "web-2", []discoveryv1.EndpointPort{slicePortOf("http", 9090)}
			})[0],
		}, "anywhere=true cluster=[10.1.0.1:8080 10.1.0.1:9090] local=[]", nil},
		{"twin, running last", []any{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", conditions("--t"))), sliceOf("ns/web-2", "web", endpointOf("10.1.0.1")),
		}, "anywhere=true cluster=[10.1.0.1:8080] local=[]", nil},
		{"twin, running first", []any{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1")), sliceOf("ns/web-2", "web", endpointOf("10.1.0.1", conditions("--t"))),
		}, "anywhere=true cluster=[10.1.0.1:8080] local=[]", nil},
		{"twin, not ready last", []any{
			sliceOf("ns/web-2", "web", endpointOf("10.1.0.1", conditions("---"))), sliceOf("ns/web-1", "web", endpointOf("10.1.0.1")),
		}, "anywhere=false cluster=[] local=[]", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, append(tt.slices, serviceOf("ns/web", "10.96.0.1"))...)
			wantState(t, r, []string{web + tt.want}, tt.problems)
		})
	}
}

// TestSliceMoves gives a slice to another Service.
func TestSliceMoves(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"), serviceOf("ns/api", "10.96.0.2"), sliceOf("ns/s", "web", endpointOf("10.1.0.1")))
	add(t, r, sliceOf("ns/s", "api", endpointOf("10.1.0.1")))
	if d := r.Update(); len(d.Upserts) != 2 {
		t.Errorf("%d rows changed; want 2", len(d.Upserts))
	}
	wantState(t, r, []string{
		"ns/api:http/TCP/IPv4 ClusterIP=10.96.0.2:80 internal=Cluster external=Cluster anywhere=true cluster=[10.1.0.1:8080] local=[]",
		web + "anywhere=false cluster=[] local=[]",
	}, nil)
}

// TestEndpointNodes checks which endpoints are local, and which have no node.
func TestEndpointNodes(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"),
		sliceOf("ns/s", "web", endpointOf("10.1.0.1"), endpointOf("10.1.0.2", here), endpointOf("10.1.0.3", nowhere)))
	want := []proxy.Endpoint{
		{Addr: addrPort("10.1.0.1:8080")},
		{Addr: addrPort("10.1.0.2:8080"), Local: true},
		{Addr: addrPort("10.1.0.3:8080"), NodeUnknown: true},
	}
	if diff := cmp.Diff(want, rowNamed(t, r.State(), "ns/web:http/TCP/IPv4").Cluster, byValue); diff != "" {
		t.Errorf("endpoints mismatch (-want +got):\n%s", diff)
	}
}
