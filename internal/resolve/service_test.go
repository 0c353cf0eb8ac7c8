package resolve

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// plain is how a row ends that has no endpoints and no policy.
const plain = " internal=Cluster external=Cluster anywhere=false cluster=[] local=[]"

// serviceTest is one Service, and the rows and problems that come of it.
type serviceTest struct {
	name     string
	service  *v1.Service
	rows     []string
	problems []string
}

func (tt serviceTest) run(t *testing.T) {
	t.Run(tt.name, func(t *testing.T) { wantState(t, resolverOf(t, tt.service), tt.rows, tt.problems) })
}

func TestClusterIPs(t *testing.T) {
	tests := []serviceTest{
		{"cluster IP", serviceOf("ns/web", "10.96.0.1"), []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain}, nil},
		{"IPv6", serviceOf("ns/web", "fd00::1"), []string{"ns/web:http/TCP/IPv6 ClusterIP=[fd00::1]:80" + plain}, nil},
		{
			"dual stack", serviceOf("ns/web", "", dualStack("10.96.0.1", "fd00::1")),
			[]string{
				"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"ns/web:http/TCP/IPv6 ClusterIP=[fd00::1]:80" + plain,
			},
			nil,
		},
		{
			"both without ipFamilies", serviceOf("ns/web", "", func(s *v1.Service) {
				s.Spec.ClusterIPs = []string{"fd00::1", "10.96.0.1"}
			}),
			[]string{
				"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"ns/web:http/TCP/IPv6 ClusterIP=[fd00::1]:80" + plain,
			},
			nil,
		},
		{"clusterIP alone", serviceOf("ns/web", "", func(s *v1.Service) {
			s.Spec.ClusterIP = "10.96.0.1"
			s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol}
		}), []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain}, nil},
		{"cluster IP beyond ipFamilies", serviceOf("ns/web", "", dualStack("10.96.0.1", "fd00::1"), func(s *v1.Service) {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}), []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain}, nil},
		{
			"cluster IP of another family than said", serviceOf("ns/web", "", dualStack("fd00::1", "fd00::2")),
			[]string{"ns/web:http/TCP/IPv6 ClusterIP=[fd00::2]:80" + plain},
			[]string{"Service ns/web: spec.clusterIPs[0]: fd00::1 is not an IPv4 address, but spec.ipFamilies[0] requires one"},
		},
		{
			"unknown family", serviceOf("ns/web", "10.96.0.1", func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{"IPv5"} }),
			nil,
			[]string{`Service ns/web: spec.ipFamilies[0]: "IPv5" is not IPv4 or IPv6`},
		},
		{"no cluster IP", serviceOf("ns/web", ""), nil, []string{"Service ns/web: spec.clusterIP: is missing, so nothing is forwarded; only an API server can allocate one"}},
		{
			"bad cluster IP", serviceOf("ns/web", "", func(s *v1.Service) { s.Spec.ClusterIP = "10.96.0.256" }),
			nil,
			[]string{`Service ns/web: spec.clusterIP: "10.96.0.256" is not an IP address`},
		},
		{"leading zeros", serviceOf("ns/web", "010.096.000.001"), []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain}, nil},
		{"headless", serviceOf("ns/web", "None"), nil, nil},
		{"external name", serviceOf("ns/web", "10.96.0.1", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), nil, nil},
		{"of another proxy", serviceOf("ns/web", "10.96.0.1", func(s *v1.Service) {
			s.Labels = map[string]string{otherProxyLabel: ""}
		}), nil, nil},
	}
	for _, tt := range tests {
		tt.run(t)
	}
}

// TestIgnoredExternalIPs reads a Service whose external IPs do not count, as
// kube-proxy with AllowServiceExternalIPs=false. One that is the load balancer's
// too stays.
func TestIgnoredExternalIPs(t *testing.T) {
	r := New(Settings{IgnoreExternalIPs: true})
	r.Services.Update(nil, serviceOf("ns/web", "10.96.0.1", externalIPs("192.0.2.1", "203.0.113.1", "nonsense"), loadBalancer("203.0.113.1")))
	r.Update()
	wantState(t, r, []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 LoadBalancer=203.0.113.1:80" + plain}, nil)
}

func TestFrontends(t *testing.T) {
	tests := []serviceTest{
		{
			"every kind", serviceOf("ns/web", "10.96.0.1", externalIPs("192.0.2.1", "2001:db8::1"), loadBalancer("203.0.113.1"), nodePort(30080)),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80 NodePort=0.0.0.0:30080" + plain},
			nil,
		},
		{
			"each address once", serviceOf("ns/web", "10.96.0.1",
				externalIPs("192.0.2.1", "10.96.0.1", "203.0.113.1", "192.0.2.1"), loadBalancer("203.0.113.1", "10.96.0.1")),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80" + plain},
			nil,
		},
		{
			"IPv4-mapped", serviceOf("ns/web", "10.96.0.1", externalIPs("::ffff:192.0.2.1", "192.0.2.1")),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 ExternalIP=192.0.2.1:80" + plain},
			nil,
		},
		{
			"bad external addresses", serviceOf("ns/web", "10.96.0.1",
				externalIPs("0.0.0.0", "192.0.2.1", "x", "fe80::1%eth0"), loadBalancer("224.0.0.1", "203.0.113.1")),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 LoadBalancer=203.0.113.1:80 ExternalIP=192.0.2.1:80" + plain},
			[]string{
				`Service ns/web: spec.externalIPs[0]: 0.0.0.0 is not the address of a single host; it is left out`,
				`Service ns/web: spec.externalIPs[2]: "x" is not an IP address; it is left out`,
				`Service ns/web: spec.externalIPs[3]: "fe80::1%eth0" has a zone, which is not supported; it is left out`,
				`Service ns/web: status.loadBalancer.ingress[0].ip: 224.0.0.1 is not the address of a single host; it is left out`,
			},
		},
		{
			"loopback addresses", serviceOf("ns/web", "10.96.0.1", externalIPs("127.0.0.1", "::ffff:127.0.0.2"), loadBalancer("127.0.0.53")),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain},
			[]string{
				"Service ns/web: spec.externalIPs[0]: 127.0.0.1 is a loopback address; it is left out",
				"Service ns/web: spec.externalIPs[1]: ::ffff:127.0.0.2 is a loopback address; it is left out",
				"Service ns/web: status.loadBalancer.ingress[0].ip: 127.0.0.53 is a loopback address; it is left out",
			},
		},
		{"ingress modes", serviceOf("ns/web", "10.96.0.1", func(s *v1.Service) {
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
				{Hostname: "lb.example"},
				{IP: "203.0.113.1", IPMode: new(v1.LoadBalancerIPModeProxy)},
				{IP: "203.0.113.2", IPMode: new(v1.LoadBalancerIPModeVIP)},
				{IP: "203.0.113.3"},
			}
		}), []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 LoadBalancer=203.0.113.2:80 LoadBalancer=203.0.113.3:80" + plain}, nil},
		{
			"node port of type ClusterIP", serviceOf("ns/web", "10.96.0.1", func(s *v1.Service) { s.Spec.Ports[0].NodePort = 30080 }),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain},
			nil,
		},
	}
	for _, tt := range tests {
		tt.run(t)
	}
}

func TestPortsAndAffinity(t *testing.T) {
	tests := []serviceTest{
		{
			"bad ports", serviceOf("ns/web", "10.96.0.1", nodePort(70000), func(s *v1.Service) {
				s.Spec.Ports = append(s.Spec.Ports,
					v1.ServicePort{Name: "zero"},
					v1.ServicePort{Name: "high", Port: 70000},
					v1.ServicePort{Name: "negative", Port: -1},
					v1.ServicePort{Name: "icmp", Port: 1, Protocol: "ICMP"},
					v1.ServicePort{Name: "http", Port: 81},
					v1.ServicePort{Name: "http", Port: 80, Protocol: v1.ProtocolSCTP},
					v1.ServicePort{Port: 82},
				)
			}),
			[]string{
				"ns/web/TCP/IPv4 ClusterIP=10.96.0.1:82" + plain,
				"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"ns/web:http/SCTP/IPv4 ClusterIP=10.96.0.1:80" + plain,
			},
			[]string{
				"Service ns/web: spec.ports[0].nodePort: 70000 is not a port (1 to 65535)",
				"Service ns/web: spec.ports[1].port: 0 is not a port (1 to 65535)",
				"Service ns/web: spec.ports[2].port: 70000 is not a port (1 to 65535)",
				"Service ns/web: spec.ports[3].port: -1 is not a port (1 to 65535)",
				`Service ns/web: spec.ports[4].protocol: "ICMP" is not TCP, UDP or SCTP`,
				`Service ns/web: spec.ports[5].name: "http" is the name of spec.ports[0] too`,
			},
		},
		{
			"affinity", serviceOf("ns/web", "10.96.0.1", affinity(nil)),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain + " affinity=3h0m0s"},
			nil,
		},
		{
			"affinity with a timeout", serviceOf("ns/web", "10.96.0.1", affinity(new(int32(60)))),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain + " affinity=1m0s"},
			nil,
		},
		{
			"affinity with a bad timeout", serviceOf("ns/web", "10.96.0.1", affinity(new(int32(0)))),
			[]string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain + " affinity=3h0m0s"},
			[]string{"Service ns/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is not a timeout (1 to 86400 seconds)"},
		},
	}
	for _, tt := range tests {
		tt.run(t)
	}
}

// affinity remembers clients, for some seconds or as long as the default is.
func affinity(seconds *int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		if seconds != nil {
			s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: seconds}}
		}
	}
}

func TestScopes(t *testing.T) {
	tests := []struct {
		name     string
		edit     []func(*v1.Service)
		internal proxy.Scope
		external proxy.Scope
	}{
		{"default", nil, proxy.ScopeCluster, proxy.ScopeCluster},
		{"internal", []func(*v1.Service){internalLocal}, proxy.ScopeLocal, proxy.ScopeCluster},
		{"external of a ClusterIP", []func(*v1.Service){externalLocal}, proxy.ScopeCluster, proxy.ScopeCluster},
		{"external with externalIPs", []func(*v1.Service){externalLocal, externalIPs("192.0.2.1")}, proxy.ScopeCluster, proxy.ScopeLocal},
		{"external of a NodePort", []func(*v1.Service){externalLocal, nodePort(30080)}, proxy.ScopeCluster, proxy.ScopeLocal},
		{"external of a LoadBalancer", []func(*v1.Service){externalLocal, loadBalancer()}, proxy.ScopeCluster, proxy.ScopeLocal},
		{"both", []func(*v1.Service){externalLocal, internalLocal, nodePort(30080)}, proxy.ScopeLocal, proxy.ScopeLocal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", tt.edit...))
			row := rowNamed(t, r.State(), "ns/web:http/TCP/IPv4")
			if row.Internal != tt.internal || row.External != tt.external {
				t.Errorf("internal %v, external %v; want %v, %v", row.Internal, row.External, tt.internal, tt.external)
			}
		})
	}
}

// TestFamilies serves one family only, in everything it publishes.
func TestFamilies(t *testing.T) {
	r := New(Settings{
		NodeName: testNode, Families: []proxy.Family{proxy.IPv4},
		LocalPods: proxy.LocalTrafficDetector{Sources: prefixes("fd00:1::/64", "10.1.0.0/16")},
	})
	add(t, r, serviceOf("ns/web", "", dualStack("10.96.0.1", "fd00::1")), serviceCIDROf("all", "10.96.0.0/16", "fd00::/64"))
	r.Update()
	wantState(t, r, []string{"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain}, nil)
	n := r.State().Node
	for _, got := range [][]string{text(n.NodePorts), text(n.LocalPods.Sources), text(r.State().CIDRs)} {
		if len(got) != 1 {
			t.Errorf("prefixes %v; want one, of IPv4", got)
		}
	}
}

// TestServiceChanges walks one Service through changes of its identity.
func TestServiceChanges(t *testing.T) {
	web := func(edit ...func(*v1.Service)) *v1.Service { return serviceOf("ns/web", "10.96.0.1", edit...) }
	steps := []struct {
		name    string
		service *v1.Service
		removes int
		upserts int
	}{
		{"new", web(), 0, 1},
		{"resync", web(), 0, 0},
		{"a field nobody reads", web(func(s *v1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }), 0, 0},
		{"port", web(func(s *v1.Service) { s.Spec.Ports[0].Port = 81 }), 0, 1},
		{"protocol", web(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }), 1, 1},
		{"port name", web(func(s *v1.Service) { s.Spec.Ports[0].Name = "www" }), 1, 1},
		{"family", serviceOf("ns/web", "fd00::1"), 1, 1},
		{"one more family", serviceOf("ns/web", "", dualStack("10.96.0.1", "fd00::1")), 0, 1},
		{"type", web(nodePort(30080)), 1, 1},
		{"external name", web(func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), 1, 0},
		{"back", web(), 0, 1},
		{"another proxy's", web(func(s *v1.Service) { s.Labels = map[string]string{otherProxyLabel: "x"} }), 1, 0},
	}
	r := resolverOf(t)
	for _, step := range steps {
		pending := r.Services.Update(nil, step.service)
		if want := step.removes+step.upserts > 0; pending != want {
			t.Errorf("%s: pending %t; want %t", step.name, pending, want)
		}
		if d := r.Update(); len(d.Removes) != step.removes || len(d.Upserts) != step.upserts {
			t.Errorf("%s: %d removed, %d upserted; want %d, %d", step.name, len(d.Removes), len(d.Upserts), step.removes, step.upserts)
		}
	}
}
