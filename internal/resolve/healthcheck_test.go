package resolve

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// healthChecked makes a Service one that load balancers ask this node about.
func healthChecked(port int32) func(*v1.Service) {
	return func(s *v1.Service) {
		loadBalancer("203.0.113.1")(s)
		externalLocal(s)
		s.Spec.HealthCheckNodePort = port
	}
}

// healthChecks returns the published health checks as lines.
func healthChecks(s *proxy.State) []string {
	var out []string
	for _, k := range slices.SortedFunc(maps.Keys(s.HealthChecks), proxy.CompareHealthCheckKeys) {
		out = append(out, s.HealthChecks[k].String())
	}
	return out
}

func TestHealthChecks(t *testing.T) {
	second := func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: v1.ProtocolTCP, Port: 53})
	}
	twoPorts := sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here), endpointOf("10.1.0.2", here))
	twoPorts.Ports = append(twoPorts.Ports, slicePortOf("dns", 5353))
	otherPort := sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here))
	otherPort.Ports = []discoveryv1.EndpointPort{slicePortOf("other", 8080)}
	tests := []struct {
		name    string
		service *v1.Service
		slices  []*discoveryv1.EndpointSlice
		want    []string
	}{
		{"no endpoints", serviceOf("ns/web", "10.96.0.1", healthChecked(30100)), nil, []string{"ns/web/IPv4 port=30100 local=0"}},
		{"local ones count", serviceOf("ns/web", "10.96.0.1", healthChecked(30100)), []*discoveryv1.EndpointSlice{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here), endpointOf("10.1.0.2"), endpointOf("10.1.0.3", nowhere)),
		}, []string{"ns/web/IPv4 port=30100 local=1"}},
		{"ready ones count", serviceOf("ns/web", "10.96.0.1", healthChecked(30100)), []*discoveryv1.EndpointSlice{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here, conditions("-st")), endpointOf("10.1.0.2", here, conditions("-s-"))),
		}, []string{"ns/web/IPv4 port=30100 local=0"}},
		{
			"an address counts once", serviceOf("ns/web", "10.96.0.1", healthChecked(30100), second),
			[]*discoveryv1.EndpointSlice{twoPorts},
			[]string{"ns/web/IPv4 port=30100 local=2"},
		},
		{
			"a port that is no Service port's", serviceOf("ns/web", "10.96.0.1", healthChecked(30100)),
			[]*discoveryv1.EndpointSlice{otherPort},
			[]string{"ns/web/IPv4 port=30100 local=0"},
		},
		{"families apart", serviceOf("ns/web", "", healthChecked(30100), dualStack("10.96.0.1", "fd00::1")), []*discoveryv1.EndpointSlice{
			sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here), endpointOf("10.1.0.2", here)),
			sliceOf("ns/web-2", "web", endpointOf("fd00:1::1", here)),
		}, []string{"ns/web/IPv4 port=30100 local=2", "ns/web/IPv6 port=30100 local=1"}},
		{"policy Cluster", serviceOf("ns/web", "10.96.0.1", healthChecked(30100), func(s *v1.Service) {
			s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		}), nil, nil},
		{"no LoadBalancer", serviceOf("ns/web", "10.96.0.1", healthChecked(30100), func(s *v1.Service) {
			s.Spec.Type = v1.ServiceTypeNodePort
		}), nil, nil},
		{"no port", serviceOf("ns/web", "10.96.0.1", healthChecked(0)), nil, nil},
		{"another proxy's", serviceOf("ns/web", "10.96.0.1", healthChecked(30100), func(s *v1.Service) {
			s.Labels = map[string]string{otherProxyLabel: "other"}
		}), nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects := []any{tt.service}
			for _, s := range tt.slices {
				objects = append(objects, s)
			}
			if diff := cmp.Diff(tt.want, healthChecks(resolverOf(t, objects...).State())); diff != "" {
				t.Errorf("health checks mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHealthCheckPortOutOfRange(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", healthChecked(70000)))
	if got := healthChecks(r.State()); got != nil {
		t.Errorf("health checks %v; want none", got)
	}
	if p := problemsOf(r); len(p) != 1 || p[0].Field != "spec.healthCheckNodePort" {
		t.Errorf("problems %v; want one of spec.healthCheckNodePort", p)
	}
}

// TestHealthCheckSteps follows one Service through its life. A step that changes
// nothing but a health check's answer leaves dataplanes alone.
func TestHealthCheckSteps(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", healthChecked(30100)),
		sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here)))
	step := func(name string, writes bool, want ...string) {
		t.Helper()
		d := r.Update()
		var got []string
		for _, c := range d.HealthChecks {
			if c.New == nil {
				got = append(got, c.Old.String()+" gone")
			} else {
				got = append(got, c.New.String())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: changes mismatch (-want +got):\n%s", name, diff)
		}
		moves := len(d.Upserts)+len(d.Removes) > 0 || slices.ContainsFunc(d.HealthChecks, proxy.HealthCheckChange.ChangesPort)
		if moves != writes {
			t.Errorf("%s: step %+v writes %t; want %t", name, d, moves, writes)
		}
	}
	add(t, r, sliceOf("ns/web-1", "web", endpointOf("10.1.0.1", here, conditions("-st"))))
	step("the last one terminates but still takes traffic", false, "ns/web/IPv4 port=30100 local=0")
	add(t, r, serviceOf("ns/web", "10.96.0.1", healthChecked(30101)))
	step("another port", true, "ns/web/IPv4 port=30101 local=0")
	add(t, r, sliceOf("ns/web-1", "web", endpointOf("10.1.0.2", here)))
	step("another endpoint", true, "ns/web/IPv4 port=30101 local=1")
	add(t, r, sliceOf("ns/web-1", "web", endpointOf("10.1.0.3", here)))
	step("another endpoint, the same count", true)
	add(t, r, serviceOf("ns/web", "10.96.0.1"))
	step("no LoadBalancer any more", true, "ns/web/IPv4 port=30101 local=1 gone")
	add(t, r, serviceOf("ns/web", "10.96.0.1", healthChecked(30100)))
	step("again", true, "ns/web/IPv4 port=30100 local=1")
	remove(t, r, serviceOf("ns/web", "10.96.0.1"))
	step("gone", true, "ns/web/IPv4 port=30100 local=1 gone")
}

// TestRowsHaveTheHealthCheckPort wants it in rows with LoadBalancer addresses, and
// those to change with it.
func TestRowsHaveTheHealthCheckPort(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", healthChecked(30100)))
	for _, port := range []uint16{30100, 30101, 0} {
		add(t, r, serviceOf("ns/web", "10.96.0.1", healthChecked(int32(port))))
		r.Update()
		for key, row := range r.State().Rows {
			if row.HealthCheckPort != port {
				t.Errorf("row %v has health-check port %d, want %d", key, row.HealthCheckPort, port)
			}
		}
	}
}
