package conntrack

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
	"sluice/internal/resolve"
)

// patience is how long traffic may take to follow a change.
const patience = 10 * time.Second

// testbed is a node with the nftables dataplane and a Reconciler, two pods that reply, and two
// clients: a pod and a host outside.
type testbed struct {
	*lab.Lab
	t        *testing.T
	pod      *lab.Host
	resolver *resolve.Resolver
	plane    *nftables.Dataplane
	rec      *Reconciler
	stop     func()   // ends the Reconciler
	flows    *ct.Conn // to look at what the node tracks
	synced   bool
}

// The two endpoints of each family, and the addresses of who asks.
var (
	podIPs    = map[proxy.Family][2]string{proxy.IPv4: {"10.0.0.11", "10.0.0.12"}, proxy.IPv6: {"fd00:10::11", "fd00:10::12"}}
	clientIPs = map[proxy.Family]string{proxy.IPv4: "10.0.0.9", proxy.IPv6: "fd00:10::9"}
	outsideIP = netip.MustParseAddr("203.0.113.2")
)

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &testbed{Lab: l, t: t}
	t.Cleanup(func() { s.check(l.Close()) })
	s.resolver = resolve.New(resolve.Settings{
		NodeName: "here",
		LocalPods: proxy.LocalTrafficDetector{
			Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/64")},
		},
	})
	for i := range 2 {
		var addrs []netip.Addr
		for _, f := range proxy.Families {
			addrs = append(addrs, netip.MustParseAddr(podIPs[f][i]))
		}
		s.serve(s.addPod(addrs...), addrs)
	}
	s.pod = s.addPod(netip.MustParseAddr(clientIPs[proxy.IPv4]), netip.MustParseAddr(clientIPs[proxy.IPv6]))
	s.open()
	return s
}

func (s *testbed) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *testbed) addPod(addrs ...netip.Addr) *lab.Host {
	s.t.Helper()
	h, err := s.AddPod("pod", addrs...)
	s.check(err)
	return h
}

func (s *testbed) serve(h *lab.Host, addrs []netip.Addr) {
	s.t.Helper()
	for _, a := range addrs {
		ln, err := h.Listen(proxy.UDP, netip.AddrPortFrom(a, 5353))
		s.check(err)
		s.t.Cleanup(func() { ln.Close() })
	}
}

// open starts what is under test on the node.
func (s *testbed) open() {
	s.t.Helper()
	var flows *ct.Conn
	s.check(s.Node().Do(func() (err error) {
		if s.plane, err = nftables.Alone.Open(s.t.Context(), mode.Settings{MasqueradeBit: 14}); err != nil {
			return err
		}
		if flows, err = ct.Open(); err != nil {
			return err
		}
		s.flows, err = ct.Open()
		return err
	}))
	s.rec = New(Settings{Flows: flows, LocalAddrs: func() (local []netip.Prefix, err error) {
		err = s.Node().Do(func() error {
			local, err = link.Conn{}.LocalPrefixes()
			return err
		})
		return local, err
	}})
	s.start()
	s.t.Cleanup(func() {
		s.stop()
		s.plane.Close()
		s.flows.Close()
		flows.Close()
	})
}

// start runs the Reconciler until stop is called.
func (s *testbed) start() {
	logger := ktesting.NewLogger(s.t, ktesting.NewConfig(ktesting.Verbosity(4)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	ended := make(chan error)
	go func() { ended <- s.rec.Run(ctx) }()
	s.stop = func() {
		cancel()
		<-ended
	}
}

// apply applies the current objects to the kernel and to the Reconciler.
func (s *testbed) apply() {
	s.t.Helper()
	d := s.resolver.Update()
	s.rec.Applying(d)
	if s.synced {
		s.check(proxytest.Apply(s.t.Context(), s.plane, d))
	} else {
		s.check(proxytest.Sync(s.t.Context(), s.plane, s.resolver.State()))
		s.synced = true
	}
	s.rec.Applied(s.resolver.State().Node, d, d.Empty())
}

// service writes the Service, of type LoadBalancer with a NodePort, and applies.
func (s *testbed) service(f proxy.Family, edit ...func(*v1.Service)) *v1.Service {
	s.t.Helper()
	ip := map[proxy.Family]string{proxy.IPv4: "172.30.0.10", proxy.IPv6: "fd00:30::10"}[f]
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "dns"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []v1.IPFamily{v1.IPFamily(f.String())},
			Ports: []v1.ServicePort{{Name: "u", Protocol: v1.ProtocolUDP, Port: 53, NodePort: 30053}},
		},
		Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: "198.51.100.1"}}}},
	}
	for _, e := range edit {
		e(svc)
	}
	s.resolver.Services.Update(nil, svc)
	s.apply()
	return svc
}

// endpoints writes the Service's endpoints: "ready", "draining", or "" for
// none, for each of the two pods; and applies.
func (s *testbed) endpoints(f proxy.Family, are ...string) {
	s.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "dns-1", Labels: map[string]string{discoveryv1.LabelServiceName: "dns"}},
		AddressType: discoveryv1.AddressType(f.String()),
		Ports: []discoveryv1.EndpointPort{
			{Name: new("u"), Protocol: new(v1.ProtocolUDP), Port: new(int32(5353))},
			{Name: new("s"), Protocol: new(v1.ProtocolSCTP), Port: new(int32(5353))},
		},
	}
	for i, is := range are {
		if is != "" {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{podIPs[f][i]}, NodeName: new("here"),
				Conditions: discoveryv1.EndpointConditions{
					Ready: new(is == "ready"), Serving: new(true), Terminating: new(is == "draining"),
				},
			})
		}
	}
	s.resolver.Endpoints.Update(slice, false)
	s.apply()
}

// endpoint is a pod as its answers name it.
func endpoint(f proxy.Family, i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(podIPs[f][i]), 5353)
}

// client keeps sending from one source port.
type client struct {
	net.Conn
	s    *testbed
	dst  netip.AddrPort
	pace *time.Ticker
}

func (s *testbed) dial(h *lab.Host, src netip.Addr, dst string) *client {
	s.t.Helper()
	c := &client{s: s, dst: netip.MustParseAddrPort(dst), pace: time.NewTicker(10 * time.Millisecond)}
	var err error
	c.Conn, err = h.Dial(s.t.Context(), proxy.UDP, src, c.dst)
	s.check(err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends one packet and returns who replied within a short time, or nothing.
func (c *client) ask() (netip.AddrPort, bool) {
	<-c.pace.C
	buf := make([]byte, 200)
	_, _ = c.Write([]byte("?")) // An earlier packet's refusal may be reported here.
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		c.s.t.Fatal(err)
	}
	n, err := c.Read(buf)
	if err != nil {
		return netip.AddrPort{}, false
	}
	own, _, _ := strings.Cut(string(buf[:n]), " ")
	by, err := netip.ParseAddrPort(own)
	if err != nil {
		c.s.t.Fatal(err)
	}
	return by, true
}

// wantAnswers asks until somebody replies, and returns who did.
func (c *client) wantAnswers() netip.AddrPort {
	c.s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if by, ok := c.ask(); ok {
			return by
		}
	}
	c.s.t.Fatalf("no answer from %v", c.dst)
	return netip.AddrPort{}
}

// wantAnswersBy asks until a given endpoint replies.
func (c *client) wantAnswersBy(want netip.AddrPort) {
	c.s.t.Helper()
	var last netip.AddrPort
	for end := time.Now().Add(patience); time.Now().Before(end); {
		by, ok := c.ask()
		if ok && by == want {
			return
		}
		last = by
	}
	c.s.t.Fatalf("%v is answered by %v; want %v", c.dst, last, want)
}

// wantSilence asks until nobody replies, several times in a row.
func (c *client) wantSilence() {
	c.s.t.Helper()
	silent := 0
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, ok := c.ask(); ok {
			silent = 0
		} else if silent++; silent == 5 {
			return
		}
	}
	c.s.t.Fatalf("%v still answers", c.dst)
}

// entries returns the tracked flows to an address.
func (s *testbed) entries(dst netip.AddrPort) []ct.Flow {
	s.t.Helper()
	flows, err := s.flows.Dump(s.t.Context(), ct.Filter{IPv6: dst.Addr().Is6(), Protocol: uint8(proxy.UDP)},
		func(f *ct.Flow) bool { return f.Orig.Dst == dst })
	s.check(err)
	return flows
}

// frontends are the addresses of a Service, as clients use them.
func (s *testbed) frontends(f proxy.Family) []func() *client {
	if f == proxy.IPv6 {
		return []func() *client{
			func() *client { return s.dial(s.pod, netip.Addr{}, "[fd00:30::10]:53") },
			func() *client { return s.dial(s.Outside(), netip.MustParseAddr("2600:5200::1"), "[2001:db8::1]:30053") },
		}
	}
	return []func() *client{
		func() *client { return s.dial(s.pod, netip.Addr{}, "172.30.0.10:53") },
		func() *client { return s.dial(s.Node(), netip.Addr{}, "172.30.0.10:53") },
		func() *client { return s.dial(s.Outside(), outsideIP, "192.168.0.2:30053") },
		func() *client { return s.dial(s.Outside(), outsideIP, "198.51.100.1:53") },
	}
}

// TestLabEndpoints removes the endpoint of a client that never stops sending: the other endpoint
// replies. Then all endpoints are removed and added again, and the Service is deleted.
func TestLabEndpoints(t *testing.T) {
	for _, f := range proxy.Families {
		t.Run(f.String(), func(t *testing.T) {
			s := newTestbed(t)
			svc := s.service(f)
			s.endpoints(f, "ready", "")
			var clients []*client
			for _, dial := range s.frontends(f) {
				c := dial()
				c.wantAnswersBy(endpoint(f, 0))
				clients = append(clients, c)
			}
			each := func(want func(*client)) {
				t.Helper()
				for _, c := range clients {
					want(c)
				}
			}
			s.endpoints(f, "ready", "ready")
			s.endpoints(f, "", "ready")
			each(func(c *client) { c.wantAnswersBy(endpoint(f, 1)) })
			s.endpoints(f, "", "")
			each((*client).wantSilence)
			s.endpoints(f, "ready", "")
			each(func(c *client) { c.wantAnswersBy(endpoint(f, 0)) })
			s.resolver.Services.Update(svc, nil)
			s.apply()
			each((*client).wantSilence)
		})
	}
}

// TestLabServingTerminating keeps the flow of a draining endpoint until the endpoint is gone (case
// ct-02 of the packet table).
func TestLabServingTerminating(t *testing.T) {
	s := newTestbed(t)
	s.service(proxy.IPv4)
	s.endpoints(proxy.IPv4, "ready", "")
	c := s.dial(s.pod, netip.Addr{}, "172.30.0.10:53")
	c.wantAnswersBy(endpoint(proxy.IPv4, 0))
	before := s.entries(c.dst)

	s.endpoints(proxy.IPv4, "draining", "ready")
	fresh := s.dial(s.pod, netip.Addr{}, "172.30.0.10:53")
	fresh.wantAnswersBy(endpoint(proxy.IPv4, 1))
	// Some flow that must go shows when the Reconciler has looked.
	s.endpoints(proxy.IPv4, "draining", "")
	fresh.wantAnswersBy(endpoint(proxy.IPv4, 0))
	if by := c.wantAnswers(); by != endpoint(proxy.IPv4, 0) {
		t.Errorf("the flow of a draining endpoint moved to %v", by)
	}
	same := func(f ct.Flow) bool { return f == before[0] }
	if len(before) != 1 || !slices.ContainsFunc(s.entries(c.dst), same) {
		t.Errorf("the entry of %v was %v, and is among %v", c.LocalAddr(), before, s.entries(c.dst))
	}
	s.endpoints(proxy.IPv4, "", "ready")
	c.wantAnswersBy(endpoint(proxy.IPv4, 1))
}

// TestLabAddedFrontends translates flows that began before their destination
// became a frontend (case ct-04 of the packet table).
func TestLabAddedFrontends(t *testing.T) {
	s := newTestbed(t)
	s.service(proxy.IPv4)
	s.endpoints(proxy.IPv4, "ready", "")
	// A program of the node has the NodePort until then.
	ln, err := s.Node().Listen(proxy.UDP, netip.MustParseAddrPort("192.168.0.2:30099"))
	s.check(err)
	defer ln.Close()
	var clients []*client
	for _, dst := range []string{"192.168.99.22:8053", "198.51.100.9:8053", "192.168.0.2:30099", "198.51.100.1:8053"} {
		c := s.dial(s.Outside(), outsideIP, dst)
		for end := time.Now().Add(patience); len(s.entries(c.dst)) == 0; c.ask() {
			if time.Now().After(end) {
				t.Fatalf("the flow to %s is not tracked", dst)
			}
		}
		if f := s.entries(c.dst)[0]; f.Reply.Src != c.dst {
			t.Fatalf("flow %v is translated already", &f)
		}
		clients = append(clients, c)
	}
	s.service(proxy.IPv4, func(s *v1.Service) {
		s.Spec.ExternalIPs = []string{"192.168.99.22"}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: "198.51.100.9"})
		s.Spec.Ports[0].NodePort, s.Spec.Ports[0].Port = 30099, 8053
	})
	for _, c := range clients {
		c.wantAnswersBy(endpoint(proxy.IPv4, 0))
	}
}

// TestLabRestart changes endpoints while the Reconciler does not run: the right flow is kept, the
// stale one is ended.
func TestLabRestart(t *testing.T) {
	s := newTestbed(t)
	s.service(proxy.IPv4)
	s.endpoints(proxy.IPv4, "ready", "")
	right := s.dial(s.pod, netip.Addr{}, "172.30.0.10:53")
	right.wantAnswersBy(endpoint(proxy.IPv4, 0))
	before := s.entries(right.dst)
	s.endpoints(proxy.IPv4, "draining", "ready")
	wrong := s.dial(s.pod, netip.Addr{}, "172.30.0.10:53")
	wrong.wantAnswersBy(endpoint(proxy.IPv4, 1))

	s.stop()
	s.endpoints(proxy.IPv4, "ready", "")
	if by := wrong.wantAnswers(); by != endpoint(proxy.IPv4, 1) {
		t.Fatalf("answered by %v before anybody looked at flows", by)
	}
	s.rec = New(s.rec.settings)
	s.start()
	first := &proxy.Delta{}
	for _, r := range s.resolver.State().Rows {
		first.Upserts = append(first.Upserts, proxy.Upsert{New: r})
	}
	s.rec.Applied(s.resolver.State().Node, first, true)
	wrong.wantAnswersBy(endpoint(proxy.IPv4, 0))
	same := func(f ct.Flow) bool { return f == before[0] }
	if len(before) != 1 || !slices.ContainsFunc(s.entries(right.dst), same) {
		t.Errorf("the entry %v is not as before", before)
	}
}
