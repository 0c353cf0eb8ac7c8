package resolve

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// TestSelection chooses among endpoints by readiness, place and policy. A want
// is the end of the row.
func TestSelection(t *testing.T) {
	type edits = []func(*v1.Service)
	bothLocal := edits{internalLocal, externalLocal, nodePort(30080)}
	tests := []struct {
		name      string
		edit      edits
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		{
			"cluster policy fills one list",
			edits{nodePort(30080)},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2")},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[]",
		},
		{
			"internal Local alone",
			edits{internalLocal},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2")},
			"anywhere=true cluster=[] local=[10.1.0.1:8080]",
		},
		{
			"internal Local with a NodePort",
			edits{internalLocal, nodePort(30080)},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2")},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[10.1.0.1:8080]",
		},
		{
			"external Local without such an address",
			edits{externalLocal, loadBalancer()},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here)},
			"anywhere=true cluster=[10.1.0.1:8080] local=[]",
		},
		{
			"external Local",
			edits{externalLocal, loadBalancer("203.0.113.1")},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2")},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[10.1.0.1:8080]",
		},
		{
			"external Local, all elsewhere",
			edits{externalLocal, nodePort(30080)},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.2")},
			"anywhere=true cluster=[10.1.0.2:8080] local=[]",
		},
		{
			"internal Local, all elsewhere",
			edits{internalLocal},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.2")},
			"anywhere=true cluster=[] local=[]",
		},
		{
			"an endpoint without a node is not local",
			edits{internalLocal},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.2", nowhere)},
			"anywhere=true cluster=[] local=[]",
		},
		{
			"unknown conditions", nil,
			[]discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
			"anywhere=true cluster=[10.1.0.1:8080] local=[]",
		},
		{
			"serving unknown, not ready, terminating", nil,
			[]discoveryv1.Endpoint{{
				Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)},
			}},
			"anywhere=true cluster=[10.1.0.1:8080] local=[]",
		},
		{
			"not ready, serving, not terminating", nil,
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", conditions("-s-"))},
			"anywhere=false cluster=[] local=[]",
		},
		{
			"terminating, not serving", bothLocal,
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here, conditions("--t"))},
			"anywhere=false cluster=[] local=[]",
		},
		{
			"terminating ones wait for the last ready one", bothLocal,
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2", here, conditions("-st"))},
			"anywhere=true cluster=[10.1.0.1:8080] local=[10.1.0.1:8080]",
		},
		{
			"lists fall back on their own", bothLocal,
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here, conditions("-st")), endpointOf("10.1.0.2")},
			"anywhere=true cluster=[10.1.0.2:8080] local=[10.1.0.1:8080]",
		},
		{
			"all terminating", bothLocal,
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", here, conditions("-st")), endpointOf("10.1.0.2", conditions("-st"))},
			"anywhere=true cluster=[10.1.0.1:8080 10.1.0.2:8080] local=[10.1.0.1:8080]",
		},
		{
			"anywhere by a terminating one",
			edits{internalLocal},
			[]discoveryv1.Endpoint{endpointOf("10.1.0.1", conditions("-st"))},
			"anywhere=true cluster=[] local=[]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", tt.edit...), sliceOf("ns/s", "web", tt.endpoints...))
			if got := r.State().String(); !strings.HasSuffix(got, tt.want+"\n") {
				t.Errorf("row %q; want its end to be %q", got, tt.want)
			}
		})
	}
}

func TestHints(t *testing.T) {
	const all = "cluster=[10.1.0.1:8080 10.1.0.2:8080]"
	tests := []struct {
		name      string
		zone      string
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		{"none", "z1", []discoveryv1.Endpoint{endpointOf("10.1.0.1"), endpointOf("10.1.0.2")}, all},
		{"zone", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z1")),
			endpointOf("10.1.0.2", zones("z2")),
		}, "cluster=[10.1.0.1:8080]"},
		{"several zones", "z2", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z1", "z2")),
			endpointOf("10.1.0.2", zones("z1")),
		}, "cluster=[10.1.0.1:8080]"},
		{"zone, one without", "z1", []discoveryv1.Endpoint{endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2")}, all},
		{"zone, none for us", "z3", []discoveryv1.Endpoint{endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones("z2"))}, all},
		{"zone, ours not known", "", []discoveryv1.Endpoint{endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones(""))}, all},
		{"zone, one not ready without", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones("z2")), endpointOf("10.1.0.3", conditions("-s-")),
		}, "cluster=[10.1.0.1:8080]"},
		{"zone, ours not ready", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z2")), endpointOf("10.1.0.2", zones("z2")), endpointOf("10.1.0.3", zones("z1"), conditions("-s-")),
		}, all},
		{"node", "", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", nodes(testNode)),
			endpointOf("10.1.0.2", nodes("other")),
		}, "cluster=[10.1.0.1:8080]"},
		{
			"node, ours first of several", "",
			[]discoveryv1.Endpoint{
				endpointOf("10.1.0.1", nodes(testNode, "other")),
				endpointOf("10.1.0.2", nodes("other")),
			},
			"cluster=[10.1.0.1:8080]",
		},
		{"node before zone", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", nodes(testNode), zones("z2")), endpointOf("10.1.0.2", nodes("other"), zones("z1")),
		}, "cluster=[10.1.0.1:8080]"},
		{"no node for us, then zone", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", nodes("other"), zones("z2")), endpointOf("10.1.0.2", nodes("other"), zones("z1")),
		}, "cluster=[10.1.0.2:8080]"},
		{"nodes not for all, then zone", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", nodes(testNode), zones("z2")), endpointOf("10.1.0.2", zones("z1")),
		}, "cluster=[10.1.0.2:8080]"},
		{"last resort ignores hints", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z1"), conditions("-st")), endpointOf("10.1.0.2", zones("z2"), conditions("-st")),
		}, all},
		{"local ignores hints", "z1", []discoveryv1.Endpoint{
			endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones("z2"), here),
		}, "cluster=[10.1.0.1:8080] local=[10.1.0.2:8080]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, nodeOf(tt.zone), serviceOf("ns/web", "10.96.0.1", externalLocal, nodePort(30080)),
				sliceOf("ns/s", "web", tt.endpoints...))
			if got := r.State().String(); !strings.Contains(got, tt.want) {
				t.Errorf("row %q; want %q in it", got, tt.want)
			}
		})
	}
}

// TestZoneChange moves the node, and rows with hints with it.
func TestZoneChange(t *testing.T) {
	r := resolverOf(t, nodeOf("z1"), serviceOf("ns/web", "10.96.0.1"), serviceOf("ns/api", "10.96.0.2"),
		sliceOf("ns/a", "web", endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones("z2"))),
		sliceOf("ns/b", "api", endpointOf("10.1.0.3")))
	if !r.UpdateNode(nodeOf("z2")) {
		t.Errorf("a new zone is not pending")
	}
	d := r.Update()
	if d.Node == nil || d.Node.Zone != "z2" || len(d.Upserts) != 1 {
		t.Fatalf("step %+v; want zone z2 and one row", d)
	}
	if got := d.Upserts[0].New.Cluster[0].Addr; got != addrPort("10.1.0.2:8080") {
		t.Errorf("endpoint %v; want 10.1.0.2:8080", got)
	}
	if r.UpdateNode(nodeOf("z2")) || r.UpdateNode(nil) || !r.Update().Empty() {
		t.Errorf("the same Node, or its deletion, is a change")
	}
}

// TestDraining checks which endpoints are draining, for protocols whose stale flows are
// ended.
func TestDraining(t *testing.T) {
	type edits = []func(*v1.Service)
	type endpoints = []discoveryv1.Endpoint
	over := func(p v1.Protocol) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.Ports[0].Protocol = p }
	}
	udp := over(v1.ProtocolUDP)
	draining := endpoints{endpointOf("10.1.0.1"), endpointOf("10.1.0.2", conditions("-st"))}
	tests := []struct {
		name      string
		edit      edits
		endpoints endpoints
		want      string
	}{
		{"all listed", edits{udp}, endpoints{endpointOf("10.1.0.1"), endpointOf("10.1.0.2")}, ""},
		{"serving while terminating", edits{udp}, draining, "draining=[10.1.0.2:8080]"},
		{"SCTP", edits{over(v1.ProtocolSCTP)}, draining, "draining=[10.1.0.2:8080]"},
		{"TCP", nil, draining, ""},
		{"terminating as the last resort", edits{udp}, endpoints{endpointOf("10.1.0.2", conditions("-st"))}, ""},
		{"terminating, serving no more", edits{udp}, endpoints{endpointOf("10.1.0.1"), endpointOf("10.1.0.2", conditions("--t"))}, ""},
		{"serving but not ready", edits{udp}, endpoints{endpointOf("10.1.0.2", conditions("-s-"))}, "draining=[10.1.0.2:8080]"},
		{"ready but not serving", edits{udp}, endpoints{endpointOf("10.1.0.1", conditions("r--"))}, ""},
		{"not ready", edits{udp}, endpoints{endpointOf("10.1.0.1"), endpointOf("10.1.0.2", conditions("---"))}, ""},
		{"of another zone", edits{udp}, endpoints{endpointOf("10.1.0.1", zones("z1")), endpointOf("10.1.0.2", zones("z2"))}, "draining=[10.1.0.2:8080]"},
		{
			"elsewhere, internal Local",
			edits{udp, internalLocal},
			endpoints{endpointOf("10.1.0.1", here), endpointOf("10.1.0.3"), endpointOf("10.1.0.2")},
			"draining=[10.1.0.2:8080 10.1.0.3:8080]",
		},
		{
			"elsewhere, external Local",
			edits{udp, externalLocal, nodePort(30053)},
			endpoints{endpointOf("10.1.0.1", here), endpointOf("10.1.0.2")},
			"",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := serviceOf("ns/web", "10.96.0.1", tt.edit...)
			slice := sliceOf("ns/s", "web", tt.endpoints...)
			slice.Ports[0].Protocol = &svc.Spec.Ports[0].Protocol
			got := resolverOf(t, nodeOf("z1"), svc, slice).State().String()
			if at := strings.Index(got, "draining="); at >= 0 {
				got = strings.TrimSpace(got[at:])
			} else {
				got = ""
			}
			if got != tt.want {
				t.Errorf("row has %q; want %q", got, tt.want)
			}
		})
	}
}

// TestDrainingChange checks that the row changes when a draining endpoint is gone.
func TestDrainingChange(t *testing.T) {
	udp := func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }
	slice := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		s := sliceOf("ns/s", "web", endpoints...)
		s.Ports[0].Protocol = new(v1.ProtocolUDP)
		return s
	}
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", udp),
		slice(endpointOf("10.1.0.1"), endpointOf("10.1.0.2", conditions("-st"))))
	add(t, r, slice(endpointOf("10.1.0.1")))
	d := r.Update()
	if len(d.Upserts) != 1 || len(d.Upserts[0].Old.Draining) != 1 || len(d.Upserts[0].New.Draining) != 0 {
		t.Errorf("step %+v; want the row without its draining endpoint", d)
	}
	add(t, r, slice(endpointOf("10.1.0.1")))
	if d := r.Update(); !d.Empty() {
		t.Errorf("the same endpoints are a step: %+v", d)
	}
}
