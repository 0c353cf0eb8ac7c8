package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/proxy"
)

// onlyPort describes the one port that a Service has.
func onlyPort(t *testing.T, r *Resolver, name string) PortDescription {
	t.Helper()
	ports, known := r.Ports(types.NamespacedName{Namespace: "ns", Name: name})
	if !known || len(ports) != 1 {
		t.Fatalf("known %t: %+v", known, ports)
	}
	p, _ := r.DescribePort(ports[0].Row.Key)
	return p
}

// TestDescribeEndpoints checks why each endpoint is not in a list.
func TestDescribeEndpoints(t *testing.T) {
	tests := []struct {
		name    string
		objects []any
		want    []string // the address, why the Cluster list has it not, why the Local list
	}{
		{
			"conditions",
			[]any{sliceOf("ns/a", "web",
				endpointOf("10.1.0.1"), endpointOf("10.1.0.2", here), endpointOf("10.1.0.3", here, conditions("---")),
				endpointOf("10.1.0.4", here, conditions("-st")), endpointOf("10.1.0.5", conditions("--t")),
				endpointOf("10.1.0.6", here, conditions("-s-")), endpointOf("10.1.0.7", nowhere))},
			[]string{
				"10.1.0.1:8080||on another node",
				"10.1.0.2:8080||",
				"10.1.0.3:8080|not ready|not ready",
				"10.1.0.4:8080|terminating, and others are ready|terminating, and others are ready",
				"10.1.0.5:8080|terminating, and no longer serving|on another node",
				"10.1.0.6:8080|not ready|not ready",
				"10.1.0.7:8080||its EndpointSlice names no node for it, so it does not count as local",
			},
		},
		{
			"the last resort",
			[]any{sliceOf("ns/a", "web", endpointOf("10.1.0.1", here, conditions("-st")), endpointOf("10.1.0.2", conditions("---")))},
			[]string{"10.1.0.1:8080||", "10.1.0.2:8080|not ready|on another node"},
		},
		{
			"hints for zones",
			[]any{nodeOf("a"), sliceOf("ns/a", "web", endpointOf("10.1.0.1", zones("a")), endpointOf("10.1.0.2", here, zones("b")))},
			[]string{"10.1.0.1:8080||on another node", "10.1.0.2:8080|its hints are for other zones|"},
		},
		{
			"hints for nodes",
			[]any{sliceOf("ns/a", "web", endpointOf("10.1.0.1", nodes(testNode)), endpointOf("10.1.0.2", nodes("x")))},
			[]string{"10.1.0.1:8080||on another node", "10.1.0.2:8080|its hints are for other nodes|on another node"},
		},
		{
			"one address twice",
			[]any{sliceOf("ns/a", "web", endpointOf("10.1.0.1", here, conditions("---"))), sliceOf("ns/b", "web", endpointOf("10.1.0.1", here))},
			[]string{"10.1.0.1:8080|another EndpointSlice has the same address, and its conditions apply|another EndpointSlice has the same address, and its conditions apply", "10.1.0.1:8080||"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, append(tt.objects, serviceOf("ns/web", "10.96.0.1", externalLocal, nodePort(30080)))...)
			var got []string
			for _, e := range onlyPort(t, r, "web").Endpoints {
				got = append(got, fmt.Sprintf("%v|%v|%v", e.Addr, e.Unused(proxy.ScopeCluster), e.Unused(proxy.ScopeLocal)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("endpoints mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDescribePortName checks which ports are listed if no slice has the Service's port.
func TestDescribePortName(t *testing.T) {
	s := sliceOf("ns/a", "web", endpointOf("10.1.0.1", here))
	s.Ports[0].Name = new("web")
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"), s)
	p := onlyPort(t, r, "web")
	if !p.PortMissing || len(p.Endpoints) != 1 || p.Endpoints[0].Unused(proxy.ScopeCluster) != UnusedNoPort || p.Endpoints[0].Slice != "a" {
		t.Errorf("port %+v", p)
	}
	if diff := cmp.Diff([]SlicePort{{"web", proxy.TCP, 8080}}, p.SlicePorts); diff != "" {
		t.Errorf("ports mismatch (-want +got):\n%s", diff)
	}
	problems := r.ProblemsOf(types.NamespacedName{Namespace: "ns", Name: "web"})
	if len(problems) != 1 || problems[0].Field != "spec.ports[0].name" {
		t.Errorf("problems %v", problems)
	}
}

// TestDescribeClusterIP checks that the Service's own ClusterIP is not used as an endpoint.
func TestDescribeClusterIP(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"), sliceOf("ns/web-1", "web", endpointOf("10.96.0.1"), endpointOf("10.1.0.1")))
	got := map[string]UnusedReason{}
	for _, e := range onlyPort(t, r, "web").Endpoints {
		got[e.Addr.Addr().String()] = e.Unused(proxy.ScopeCluster)
	}
	if want := map[string]UnusedReason{"10.96.0.1": UnusedClusterIP, "10.1.0.1": Used}; !maps.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

// TestDescribeClaims checks which Service owns a claim, as described by both claimants.
func TestDescribeClaims(t *testing.T) {
	r := resolverOf(t,
		serviceOf("ns/old", "10.96.0.1", bornAt(1), externalIPs("192.0.2.1"), nodePort(30080)),
		serviceOf("ns/new", "10.96.0.2", bornAt(2), externalIPs("192.0.2.1"), nodePort(30080)))
	var got []string
	for _, f := range onlyPort(t, r, "new").Frontends {
		text := fmt.Sprintf("%v %v", f.Kind, f.Addr)
		if f.LostTo != nil {
			text += " lost to " + f.LostTo.String()
		}
		got = append(got, text)
	}
	want := []string{"ClusterIP 10.96.0.2:80", "ExternalIP 192.0.2.1:80 lost to ns/old", "NodePort 0.0.0.0:30080 lost to ns/old"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frontends mismatch (-want +got):\n%s", diff)
	}
	if want, got := problemsOf(r), r.ProblemsOf(types.NamespacedName{Namespace: "ns", Name: "new"}); !slices.Equal(want, got) {
		t.Errorf("problems %v; want %v", got, want)
	}
	who := r.Claimants(netip.MustParseAddrPort("192.0.2.1:80"), proxy.TCP)
	if len(who) != 2 || who[0].Key.Name != "old" || who[1].Key.Name != "new" || who[1].Kind != proxy.ExternalIP {
		t.Errorf("claimants %v", who)
	}
	if who := r.Claimants(netip.MustParseAddrPort("10.96.0.2:80"), proxy.TCP); len(who) != 1 || who[0].Key.String() != "ns/new:http/TCP/IPv4" {
		t.Errorf("claimants of its own %v", who)
	}
	if who := r.Claimants(netip.MustParseAddrPort("10.96.0.2:80"), proxy.UDP); who != nil {
		t.Errorf("claimants of another protocol %v", who)
	}
}

// TestDescribeUnknown checks that a headless Service is not known.
func TestDescribeUnknown(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "None"), sliceOf("ns/a", "web", endpointOf("10.1.0.1")))
	if ports, known := r.Ports(types.NamespacedName{Namespace: "ns", Name: "web"}); known {
		t.Errorf("%+v", ports)
	}
}
