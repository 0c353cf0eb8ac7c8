package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// stateOf returns a state with rows, on a node all of whose addresses accept NodePorts.
func stateOf(rows ...*proxy.ServicePort) *proxy.State {
	s := proxy.NewState()
	s.Node = &proxy.Node{
		Name: "node-1", IPs: []netip.Addr{host, netip.MustParseAddr("2001:db8::1")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	}
	for _, r := range rows {
		s.Rows[r.Key] = r
	}
	return s
}

// service returns a row with a ClusterIP 10.96.x.y:80 and endpoints, of which those in 10.0.0.0/16
// are on this node.
func service(n int, endpoints ...string) *proxy.ServicePort {
	vip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	sp := &proxy.ServicePort{
		Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: vip.String(), Protocol: proxy.TCP}},
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(vip, 80)}},
	}
	for _, text := range endpoints {
		e := proxy.Endpoint{Addr: netip.MustParseAddrPort(text), Local: strings.HasPrefix(text, "10.0.")}
		if sp.Cluster = append(sp.Cluster, e); e.Local {
			sp.Local = append(sp.Local, e)
		}
	}
	sp.UsableSomewhere = len(sp.Cluster) > 0
	return sp
}

// with adds frontends of all kinds to a row.
func with(sp *proxy.ServicePort, n int) *proxy.ServicePort {
	at := func(net byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{net, 0, byte(n >> 8), byte(n)}), 80)
	}
	sp.Frontends = append(
		sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: at(1)}, proxy.Frontend{Kind: proxy.ExternalIP, Addr: at(2)},
		proxy.Frontend{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(30000+n))},
	)
	return sp
}

// sync expects that HNS accepts everything, apply that it answers. If Apply needs a Sync, it
// follows, as in the engine.
func (n *node) sync(t *testing.T, s *proxy.State) {
	t.Helper()
	if refused, err := n.Sync(t.Context(), s); err != nil || len(refused) > 0 {
		t.Fatalf("refused %v, error %v", refused, err)
	}
	n.fake.Reset()
}

func (n *node) apply(t *testing.T, s *proxy.State, rows ...*proxy.ServicePort) proxy.Refused {
	t.Helper()
	c := &proxy.Changed{}
	for _, r := range rows {
		s.Rows[r.Key] = r
		c.Rows = append(c.Rows, r.Key)
	}
	slices.SortFunc(c.Rows, proxy.ComparePortKeys)
	refused, err := n.Apply(t.Context(), s, c)
	if errors.Is(err, proxy.ErrNeedSync) {
		refused, err = n.Sync(t.Context(), s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return refused
}

// accept applies rows, none of which may be refused.
func (n *node) accept(t *testing.T, s *proxy.State, rows ...*proxy.ServicePort) {
	t.Helper()
	if refused := n.apply(t, s, rows...); len(refused) > 0 {
		t.Errorf("refused %v", refused)
	}
}

// shows expects texts in the description of the objects.
func (n *node) shows(t *testing.T, want ...string) {
	t.Helper()
	text := strings.Join(n.Objects(), "\n")
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("there is no %q:\n%s", w, text)
		}
	}
}

// wantCalls compares the calls of HNS since the last time.
func (n *node) wantCalls(t *testing.T, what string, want hnstest.Count) {
	t.Helper()
	got, done := n.fake.Reset()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: calls (-want +got):\n%s\n%s", what, diff, strings.Join(done, "\n"))
	}
}

// TestCallsPerChange counts the calls for the change of an endpoint: as many with 10,000 Services
// as with 100, and no list.
func TestCallsPerChange(t *testing.T) {
	slow := hnstest.Full
	slow.ModifyLoadBalancer = false
	for _, services := range []int{100, proxytest.Many(10_000)} {
		for _, network := range []hns.Network{bridge, overlay} {
			for _, f := range []hns.Features{hnstest.Full, slow} {
				t.Run(fmt.Sprintf("%d/%s/%t", services, network.Type, f.ModifyLoadBalancer), func(t *testing.T) {
					change := hnstest.Count{"UpdateLoadBalancer": 1}
					if !f.ModifyLoadBalancer {
						change = hnstest.Count{"DeleteLoadBalancer": 1, "CreateLoadBalancer": 1}
					}
					and := func(more hnstest.Count) hnstest.Count { maps.Copy(more, change); return more }
					n := newNode(f, network, mode.Kernelspace{})
					s := stateOf()
					for i := range services {
						r := service(i, "10.1.0.1:80", fmt.Sprintf("10.2.%d.%d:80", i>>8, i&255))
						s.Rows[r.Key] = r
					}
					n.sync(t, s)
					n.apply(t, s, service(7, "10.1.0.1:80", "10.1.0.7:80"))
					n.wantCalls(t, "an endpoint is replaced", and(hnstest.Count{"CreateEndpoint": 1, "DeleteEndpoint": 1}))
					n.apply(t, s, service(7, "10.1.0.1:80", "10.1.0.7:80", "10.1.0.8:80"))
					n.wantCalls(t, "an endpoint comes", and(hnstest.Count{"CreateEndpoint": 1}))
					n.apply(t, s, service(7, "10.1.0.1:80", "10.1.0.7:80"))
					n.wantCalls(t, "an endpoint goes", and(hnstest.Count{"DeleteEndpoint": 1}))
					n.apply(t, s, service(7, "10.1.0.7:80"))
					n.wantCalls(t, "an endpoint that others have goes", and(hnstest.Count{}))
					n.runPod(t.Context(), netip.MustParseAddr("10.0.0.9"))
					n.pods[netip.MustParseAddr("10.0.0.9")] = "runs"
					n.fake.Reset()
					n.apply(t, s, service(7, "10.1.0.7:80", "10.0.0.9:80"))
					n.wantCalls(t, "a pod here comes", and(hnstest.Count{"Endpoints": 1}))
					n.apply(t, s, service(7, "10.1.0.7:80"))
					n.wantCalls(t, "a pod here goes", change)
					n.apply(t, s, service(7, "10.1.0.7:80"))
					n.wantCalls(t, "nothing", hnstest.Count{})
				})
			}
		}
	}
}

// TestOrder checks that endpoints are created before the load balancers that use them, and deleted
// after.
func TestOrder(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80"))
	n.sync(t, s)
	n.apply(t, s, service(1, "10.1.0.2:80"))
	_, done := n.fake.Reset()
	var verbs []string
	for _, text := range done {
		verbs = append(verbs, strings.Join(strings.Fields(text)[:2], " "))
	}
	if diff := cmp.Diff([]string{"create endpoint", "update load", "delete endpoint"}, verbs); diff != "" {
		t.Error(diff)
	}
}

// lively has rows of all kinds.
func lively() *proxy.State {
	local := with(service(2, "10.0.0.1:80", "10.1.0.1:80"), 2)
	local.External, local.Internal, local.Affinity, local.HealthCheckPort = proxy.ScopeLocal, proxy.ScopeLocal, 1, 32000
	return stateOf(with(service(1, "10.0.0.1:80", "10.1.0.1:80", "10.1.0.2:80"), 1), local, service(3))
}

// checked are options with which health checks are answered at VIPs.
var checked = mode.Kernelspace{Network: "pods", RootEndpoint: "cbr0", ForwardHealthCheckVIP: true, HealthzPort: 10256, DSR: true}

func newChecked(t *testing.T, network hns.Network) *node {
	n := newNode(hnstest.Full, network, checked)
	at := n.fake.SetNetwork(hns.Network{Name: "host", Type: "L2Bridge"})
	if _, err := n.fake.CreateEndpoint(t.Context(), hns.Endpoint{Network: at, Name: "cbr0", Addrs: []netip.Addr{host}}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRestart checks that another daemon finds everything as wanted, and writes nothing.
func TestRestart(t *testing.T) {
	for _, network := range []hns.Network{bridge, overlay} {
		t.Run(network.Type, func(t *testing.T) {
			n := newChecked(t, network)
			n.sync(t, lively())
			n.shows(t, "32000", "10256") // ports that answer health checks
			n.Dataplane = n.open(n.options)
			n.Sync(t.Context(), lively())
			n.wantCalls(t, "a restart", hnstest.Count{"Features": 1, "Network": 1, "Endpoints": 1, "LoadBalancers": 1})
		})
	}
}

// TestHealthCheckMoves changes the health-check port of a Service.
func TestHealthCheckMoves(t *testing.T) {
	n := newChecked(t, bridge)
	n.sync(t, lively())
	s := lively()
	moved := *s.Rows[service(2).Key]
	moved.HealthCheckPort = 32001
	n.apply(t, s, &moved)
	n.wantCalls(t, "a check moves", hnstest.Count{"DeleteLoadBalancer": 1, "CreateLoadBalancer": 1})
	n.wantFresh(t, s)
}

// wantFresh compares the objects with those of a new node with the same state.
func (n *node) wantFresh(t *testing.T, s *proxy.State) {
	t.Helper()
	other := newChecked(t, bridge)
	if !n.options.ForwardHealthCheckVIP {
		other = newNode(hnstest.Full, bridge, mode.Kernelspace{})
	}
	if _, err := other.Sync(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Join(other.Objects(), "\n"), strings.Join(n.Objects(), "\n")); diff != "" {
		t.Errorf("not as a fresh build (-fresh +got):\n%s", diff)
	}
}

// TestPodComesLate creates a pod's endpoint in HNS after the pod became an endpoint of its Service:
// the others are served, and the row is complete when it is retried.
func TestPodComesLate(t *testing.T) {
	n, pod := newNode(hnstest.Full, bridge, mode.Kernelspace{}), netip.MustParseAddr("10.0.0.1")
	n.pods[pod] = "late"
	s := stateOf(service(1, "10.1.0.1:80"), service(2, "10.1.0.1:80"))
	n.sync(t, s)
	for range 2 {
		refused := n.apply(t, s, service(1, "10.1.0.1:80", "10.0.0.1:80", "10.1.0.2:80"))
		if why, ok := errors.AsType[*proxy.PartialError](refused[service(1).Key]); len(refused) != 1 || !ok || !strings.Contains(why.Error(), "no HNS endpoint: 10.0.0.1 on network pods") {
			t.Errorf("refused %v", refused)
		}
		n.shows(t, "10.96.0.1:80 protocol 6 to [10.1.0.1 10.1.0.2]")
	}
	n.fake.Reset()
	n.runPod(t.Context(), pod)
	n.accept(t, s, s.Rows[service(1).Key])
	n.wantCalls(t, "the pod is there", hnstest.Count{"CreateEndpoint": 1, "Endpoints": 1, "UpdateLoadBalancer": 1})
	n.wantFresh(t, s)
}

// TestPodIsReplaced creates a pod's endpoint anew with the same address.
func TestPodIsReplaced(t *testing.T) {
	n, pod := newNode(hnstest.Full, bridge, mode.Kernelspace{}), netip.MustParseAddr("10.0.0.1")
	s := stateOf(service(1, "10.0.0.1:80"))
	n.sync(t, s)
	if err := n.fake.DeleteEndpoint(t.Context(), n.pods[pod]); err != nil {
		t.Fatal(err)
	}
	n.runPod(t.Context(), pod)
	n.fake.Reset()
	n.accept(t, s, service(1, "10.0.0.1:80", "10.1.0.1:80"))
	n.wantFresh(t, s)
}

// TestRefusal makes HNS refuse an address: the rest of its row and all other rows are served, and
// it is added when HNS accepts it.
func TestRefusal(t *testing.T) {
	for _, no := range []error{errors.New("HNS says no"), hns.ErrExists} {
		for _, refused := range []string{"1.0.0.1", "10.96.0.1", "10.1.0.2"} {
			t.Run(fmt.Sprint(refused, " ", no), func(t *testing.T) { refuses(t, netip.MustParseAddr(refused), no) })
		}
	}
}

// refuses makes HNS refuse an address.
func refuses(t *testing.T, at netip.Addr, no error) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(with(service(1, "10.1.0.1:80", "10.1.0.2:80"), 1), with(service(2, "10.1.0.1:80"), 2))
	n.fake.Refuse(at, no)
	got, err := n.Sync(t.Context(), s)
	for range 3 { // trying it again lists nothing
		if err != nil || len(got) != 1 || got[service(1).Key] == nil {
			t.Fatalf("refused %v, error %v", got, err)
		}
		got, err = n.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{service(1).Key}})
	}
	n.shows(t, "2.0.0.1:80", "30001", "1.0.0.2:80", "2.0.0.2:80", "10.96.0.2:80", "30002")
	n.fake.Refuse(at, nil)
	n.accept(t, s, s.Rows[service(1).Key])
	n.wantFresh(t, s)
}

// TestRefusedRemoval makes HNS refuse to delete a load balancer: its row is retried, though it is
// no longer wanted.
func TestRefusedRemoval(t *testing.T) {
	n, row := newNode(hnstest.Full, bridge, mode.Kernelspace{}), service(1, "10.1.0.1:80")
	s := stateOf(row)
	n.sync(t, s)
	n.fake.Refuse(netip.MustParseAddr("10.96.0.1"), errors.New("HNS says no"))
	delete(s.Rows, row.Key)
	changed := &proxy.Changed{Rows: []proxy.PortKey{row.Key}}
	if refused, err := n.Apply(t.Context(), s, changed); err != nil || refused[row.Key] == nil {
		t.Fatalf("refused %v, error %v", refused, err)
	}
	n.fake.Refuse(netip.MustParseAddr("10.96.0.1"), nil)
	if refused, err := n.Apply(t.Context(), s, changed); err != nil || len(refused) > 0 {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if got := n.Objects(); len(got) > 0 {
		t.Errorf("there is still %v", got)
	}
}

// stubborn fails to delete load balancers a number of times.
type stubborn struct {
	*hnstest.Fake
	fails int
}

func (s *stubborn) DeleteLoadBalancer(ctx context.Context, id string) error {
	if s.fails > 0 {
		s.fails--
		return errors.New("HNS says no")
	}
	return s.Fake.DeleteLoadBalancer(ctx, id)
}

// TestDeleteFailsOnce checks that a failed deletion is repeated immediately, whether a load
// balancer is to be removed or replaced.
func TestDeleteFailsOnce(t *testing.T) {
	n, sticky := newNode(hnstest.Full, bridge, mode.Kernelspace{}), service(1, "10.1.0.1:80")
	h := &stubborn{Fake: n.fake}
	n.service, sticky.Affinity = h, 1
	s := stateOf(service(1, "10.1.0.1:80"))
	n.sync(t, s)
	for _, row := range []*proxy.ServicePort{sticky, service(1)} {
		h.fails = 1
		n.accept(t, s, row)
	}
}

// TestSyncFailsToDelete makes HNS refuse to delete a load balancer of no row: it is deleted when
// that is retried.
func TestSyncFailsToDelete(t *testing.T) {
	n, row := newNode(hnstest.Full, bridge, mode.Kernelspace{}), service(1, "10.1.0.1:80")
	h := &stubborn{Fake: n.fake}
	n.service = h
	s := stateOf(row)
	n.sync(t, s)
	delete(s.Rows, row.Key)
	h.fails = 2
	leftovers := &proxy.Changed{Leftovers: true}
	refused, err := n.Sync(t.Context(), s)
	for try := range 2 {
		if wants := 1 - try; err != nil || len(refused) != wants || (refused[proxy.PortKey{}] != nil) != (wants > 0) {
			t.Errorf("after %d retries: refused %v, error %v", try, refused, err)
		}
		n.accept(t, s, service(2, "10.1.0.1:80")) // a change of a row retries nothing
		refused, err = n.Apply(t.Context(), s, leftovers)
	}
	n.wantFresh(t, s)
}

// TestRandomFaults refuses random addresses while rows change. When HNS accepts everything again
// and the refused rows were retried, it has what a fresh build has.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n, s, dirty := newNode(hnstest.Full, bridge, mode.Kernelspace{}), stateOf(), map[proxy.PortKey]bool{}
		addrs := []string{"10.96.0.1", "10.96.0.2", "1.0.0.1", "10.1.0.1", "10.1.0.2", "10.1.0.3"}
		n.sync(t, s)
		settle := func() {
			rows := slices.SortedFunc(maps.Keys(dirty), proxy.ComparePortKeys)
			refused, err := n.Apply(t.Context(), s, &proxy.Changed{Rows: rows})
			if err != nil {
				t.Fatal(err)
			}
			clear(dirty)
			for key := range refused {
				dirty[key] = true
			}
		}
		for range 30 {
			var no error
			if rng.IntN(2) == 0 {
				no = errors.New("HNS says no")
			}
			n.fake.Refuse(netip.MustParseAddr(addrs[rng.IntN(len(addrs))]), no)
			var to []string
			for _, e := range []string{"10.0.0.1:80", "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"} {
				if rng.IntN(2) == 0 {
					to = append(to, e)
				}
			}
			i := 1 + rng.IntN(2)
			row := with(service(i, to...), i)
			row.External = proxy.Scope(rng.IntN(2))
			if dirty[row.Key] = true; rng.IntN(5) == 0 {
				delete(s.Rows, row.Key)
			} else {
				s.Rows[row.Key] = row
			}
			settle()
		}
		for _, a := range addrs {
			n.fake.Refuse(netip.MustParseAddr(a), nil)
		}
		if settle(); len(dirty) > 0 {
			t.Errorf("seed %d: %v are still refused", seed, dirty)
		}
		n.sync(t, s) // which takes away endpoints that could not go
		if n.wantFresh(t, s); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestUnanswered stops the service: everything is compared when it is back.
func TestUnanswered(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80"))
	n.sync(t, s)
	n.fake.Fail(hns.ErrNotRunning)
	row := service(1, "10.1.0.2:80")
	s.Rows[row.Key] = row
	for range 2 {
		if _, err := n.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{row.Key}}); !errors.Is(err, proxy.ErrNeedSync) {
			t.Errorf("error %v, want one that asks for a Sync", err)
		}
	}
	if _, err := n.Sync(t.Context(), s); !errors.Is(err, hns.ErrNotRunning) {
		t.Errorf("Sync: error %v", err)
	}
	n.fake.Fail(nil)
	n.sync(t, s)
	n.wantFresh(t, s)
}

// TestNetworkIsReplaced makes a network plugin create the network anew.
func TestNetworkIsReplaced(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(with(service(1, "10.1.0.1:80", "10.0.0.1:80"), 1))
	n.sync(t, s)
	n.fake.RemoveNetwork(n.network)
	if _, err := n.Sync(t.Context(), s); !errors.Is(err, hns.ErrNotFound) || !strings.Contains(err.Error(), "--network-name") {
		t.Errorf("without a network: error %v", err)
	}
	n.network, n.pods = n.fake.SetNetwork(bridge), map[netip.Addr]string{}
	n.sync(t, s)
	n.wantFresh(t, s)
}

// foreign adds objects of other programs, and what kube-proxy left.
func (n *node) foreign(t *testing.T) (theirs []string, leftovers int) {
	t.Helper()
	make := func(network string, e hns.Endpoint) string {
		e.Network = network
		x, err := n.fake.CreateEndpoint(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	balance := func(vip string, port uint16, to ...string) {
		l := hns.LoadBalancer{Protocol: 6, ExternalPort: port, InternalPort: 80, Endpoints: to}
		if vip != "" {
			l.VIP = netip.MustParseAddr(vip)
		}
		if _, err := n.fake.CreateLoadBalancer(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	at := n.fake.SetNetwork(hns.Network{Name: "theirs", Type: "nat"})
	theirsID := make(at, hns.Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("172.20.0.2")}, MAC: "00-15-5d-09-09-09"})
	make(n.network, hns.Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("10.1.9.9")}, MAC: "00-15-5d-09-09-08", Remote: true})
	pod := n.runPod(t.Context(), netip.MustParseAddr("10.0.0.1"))
	n.pods[netip.MustParseAddr("10.0.0.1")] = pod
	balance("", 30002, theirsID)
	balance("172.20.0.1", 80, theirsID)
	theirs = n.fake.State()
	old := make(n.network, hns.Endpoint{Name: "Ethernet", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.77")}, MAC: "02-11-0A-01-00-4D", Remote: true})
	balance("10.96.7.7", 80, old)
	balance("", 30077, pod)
	return theirs, 3
}

// TestForeignObjects checks that objects of other programs are kept, and that those of kube-proxy
// are adopted, and removed by Cleanup.
func TestForeignObjects(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	theirs, leftovers := n.foreign(t)
	removed, err := n.open(n.options).Cleanup(t.Context())
	if err != nil || len(removed) != leftovers {
		t.Errorf("removed %q, error %v", removed, err)
	}
	if diff := cmp.Diff(theirs, n.fake.State()); diff != "" {
		t.Errorf("after a clean-up (-theirs +got):\n%s", diff)
	}

	n = newNode(hnstest.Full, bridge, mode.Kernelspace{})
	n.foreign(t)
	thief := service(3, "10.1.0.1:80")
	thief.Frontends = append(thief.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: netip.MustParseAddrPort("172.20.0.1:80")})
	s := stateOf(with(service(1, "10.0.0.1:80", "10.1.0.1:80", "10.1.9.9:80"), 1), with(service(2, "10.1.0.1:80"), 2), thief)
	refused, err := n.Sync(t.Context(), s)
	if err != nil || len(refused) != 2 || refused[thief.Key] == nil || !strings.Contains(refused[service(2).Key].Error(), "load balancer TCP NodePort 30002 IPv4 belongs to another program") {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if text := strings.Join(n.fake.State(), "\n"); strings.Contains(text, "10.96.7.7") || strings.Contains(text, "10.1.0.77") || strings.Contains(text, "30077") {
		t.Errorf("what kube-proxy left is still there:\n%s", text)
	}
	n.apply(t, s, with(service(1, "10.0.0.1:80", "10.1.0.1:80"), 1))
	if text := strings.Join(n.fake.State(), "\n"); !strings.Contains(text, "10.1.9.9") {
		t.Errorf("another program's endpoint is gone, as no row uses it any more:\n%s", text)
	}
	if removed, err = n.open(n.options).Cleanup(t.Context()); err != nil || len(removed) != 9 {
		t.Errorf("removed %q, error %v", removed, err)
	}
	if diff := cmp.Diff(theirs, n.fake.State()); diff != "" {
		t.Errorf("after serving and a clean-up (-theirs +got):\n%s", diff)
	}
}

// TestOrphans has load balancers whose endpoints were all deleted, with the network, while no
// daemon ran: their owner cannot be recognized, nobody uses them, and they are adopted.
func TestOrphans(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(with(service(1, "10.1.0.1:80", "10.0.0.1:80"), 1))
	n.sync(t, s)
	n.fake.RemoveNetwork(n.network)
	n.network, n.pods = n.fake.SetNetwork(bridge), map[netip.Addr]string{}
	n.Dataplane = n.open(n.options)
	n.sync(t, s)
	n.wantFresh(t, s)
}

// crowded has load balancers beside those of the fake.
type crowded struct {
	*hnstest.Fake
	beside map[string]hns.LoadBalancer
}

func (c *crowded) LoadBalancers(ctx context.Context) (map[string]hns.LoadBalancer, error) {
	all, err := c.Fake.LoadBalancers(ctx)
	maps.Copy(all, c.beside)
	return all, err
}

func (c *crowded) DeleteLoadBalancer(ctx context.Context, id string) error {
	if _, ok := c.beside[id]; ok {
		delete(c.beside, id)
		return nil
	}
	return c.Fake.DeleteLoadBalancer(ctx, id)
}

// TestSharedFrontend has three load balancers with one frontend: one of ours is kept, and so is
// another program's.
func TestSharedFrontend(t *testing.T) {
	for range 20 { // orders in which they are listed
		n, row := newNode(hnstest.Full, bridge, mode.Kernelspace{}), service(1, "10.1.0.1:80")
		s := stateOf(row)
		n.sync(t, s)
		c := &crowded{Fake: n.fake, beside: map[string]hns.LoadBalancer{}}
		for _, b := range n.inv.balancers {
			theirs := b.LoadBalancer
			theirs.Endpoints = []string{"theirs"}
			c.beside["ours"], c.beside["theirs"] = b.LoadBalancer, theirs
		}
		n.Dataplane = n.open(n.options)
		n.service = c
		n.sync(t, s)
		all, err := c.LoadBalancers(t.Context())
		if _, kept := all["theirs"]; err != nil || !kept || len(all) != 2 {
			t.Fatalf("there are %v, error %v", all, err)
		}
		delete(s.Rows, row.Key)
		n.sync(t, s)
		if all, err = c.LoadBalancers(t.Context()); err != nil || len(all) != 1 {
			t.Fatalf("without the Service there are %v, error %v", all, err)
		}
	}
}

// TestTakeover has the frontends of a Service as kube-proxy creates them: nothing is written.
func TestTakeover(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	ctx := t.Context()
	x, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Network: n.network, Name: "Ethernet", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, MAC: "02-11-0A-01-00-01", Remote: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []hns.LoadBalancer{
		{VIP: netip.MustParseAddr("10.96.0.1"), ExternalPort: 80},
		{ExternalPort: 30001, Flags: hns.ExternalVIP | hns.LocalRoutedVIP},
		{VIP: netip.MustParseAddr("2.0.0.1"), ExternalPort: 80, Flags: hns.ExternalVIP},
		{VIP: netip.MustParseAddr("1.0.0.1"), ExternalPort: 80, Flags: hns.ExternalVIP},
	} {
		l.Protocol, l.InternalPort, l.Endpoints = 6, 80, []string{x}
		if _, err := n.fake.CreateLoadBalancer(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	n.fake.Reset()
	if refused, err := n.Sync(ctx, stateOf(with(service(1, "10.1.0.1:80"), 1))); err != nil || len(refused) > 0 {
		t.Errorf("refused %v, error %v", refused, err)
	}
	n.wantCalls(t, "taking over", hnstest.Count{"Features": 1, "Network": 1, "Endpoints": 1, "LoadBalancers": 1})
}

// TestFlagsChange replaces a load balancer whose flags change, because HNS can only update
// endpoints.
func TestFlagsChange(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80"))
	n.sync(t, s)
	sticky := service(1, "10.1.0.1:80")
	sticky.Affinity = 1
	n.apply(t, s, sticky)
	n.wantCalls(t, "affinity", hnstest.Count{"DeleteLoadBalancer": 1, "CreateLoadBalancer": 1})
	n.wantFresh(t, s)
}

// immutable is a service that cannot update load balancers, although its version says that it can.
type immutable struct {
	*hnstest.Fake
	asked int
}

func (i *immutable) UpdateLoadBalancer(context.Context, string, hns.LoadBalancer) error {
	i.asked++
	return hns.ErrUnsupported
}

// TestModifyUnsupported replaces a load balancer if HNS turns out not to update it, and does not
// try to update again.
func TestModifyUnsupported(t *testing.T) {
	n, s := newNode(hnstest.Full, bridge, mode.Kernelspace{}), stateOf(service(1, "10.1.0.1:80", "10.1.0.2:80"))
	h := &immutable{Fake: n.fake}
	n.service = h
	n.sync(t, s)
	for _, to := range []string{"10.1.0.1:80", "10.1.0.2:80"} {
		n.accept(t, s, service(1, to))
		n.wantFresh(t, s)
		n.sync(t, s)
	}
	if h.asked != 1 {
		t.Errorf("asked %d times", h.asked)
	}
}

// TestPreserveDestination expects kube-proxy's flags at load-balancer addresses, including those of
// health checks, and at no others.
func TestPreserveDestination(t *testing.T) {
	n, row := newChecked(t, bridge), with(service(1, "10.0.0.1:80", "10.1.0.1:80"), 1)
	row.External, row.PreserveDestination = proxy.ScopeLocal, true
	n.sync(t, stateOf(row))
	text := strings.Join(n.Objects(), "\n")
	if !strings.Contains(text, "1.0.0.1:80 protocol 6 to [10.0.0.1] port 80 [DSR UseMux PreserveDIP ExternalVIP]") ||
		!strings.Contains(text, "1.0.0.1:10256 protocol 6 to [192.168.0.2] port 10256 [UseMux PreserveDIP]") || strings.Count(text, "PreserveDIP") != 2 {
		t.Errorf("not at the load-balancer address alone:\n%s", text)
	}
}

// TestSharedHealthCheck lets two Services with the same load-balancer address disagree about the
// flags of what answers health checks there. The first one decides, after any history.
func TestSharedHealthCheck(t *testing.T) {
	plain, preserving := with(service(1, "10.0.0.1:80"), 1), with(service(2, "10.0.0.1:80"), 1)
	preserving.External, preserving.PreserveDestination = proxy.ScopeLocal, true
	for i := range preserving.Frontends { // the same addresses at another port
		f := &preserving.Frontends[i].Addr
		*f = netip.AddrPortFrom(f.Addr(), f.Port()+1)
	}
	ordinary := *preserving
	ordinary.PreserveDestination = false
	const check = "1.0.0.1:10256 protocol 6 to [192.168.0.2] port 10256 "
	n, s := newChecked(t, bridge), stateOf(preserving)
	n.sync(t, s)
	n.shows(t, check+"[UseMux PreserveDIP]")
	for _, tt := range []struct {
		rows    []*proxy.ServicePort // the first one changes
		flags   string
		refused int
	}{
		{[]*proxy.ServicePort{&ordinary}, "[]", 0},
		{[]*proxy.ServicePort{preserving}, "[UseMux PreserveDIP]", 0},
		{[]*proxy.ServicePort{plain, preserving}, "[]", 1},
		{[]*proxy.ServicePort{preserving}, "[UseMux PreserveDIP]", 0},
	} {
		changed := &proxy.Changed{Rows: []proxy.PortKey{plain.Key, preserving.Key}}
		s = stateOf(tt.rows...)
		for _, full := range []bool{false, true} {
			refused, err := n.Apply(t.Context(), s, changed)
			if full {
				refused, err = n.Sync(t.Context(), s)
			}
			if err != nil || len(refused) != tt.refused {
				t.Errorf("refused %v, error %v; want %d", refused, err, tt.refused)
			}
			n.shows(t, check+tt.flags)
		}
		n.wantFresh(t, s)
	}
}

// TestNodeChanges makes a node accept NodePorts, and changes its address.
func TestNodeChanges(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(with(service(1, "10.1.0.1:80"), 1))
	open := s.Node
	closed := *open
	closed.NodePorts = nil
	s.Node = &closed
	if _, err := n.Sync(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	n.fake.Reset()
	s.Node = open
	if refused, err := n.Apply(t.Context(), s, &proxy.Changed{Node: true}); err != nil || len(refused) > 0 {
		t.Errorf("refused %v, error %v", refused, err)
	}
	n.wantCalls(t, "NodePorts open", hnstest.Count{"CreateLoadBalancer": 1})
	n.wantFresh(t, s)
	moved := *open
	moved.IPs = []netip.Addr{netip.MustParseAddr("192.168.0.77")}
	s.Node = &moved
	if _, err := n.Apply(t.Context(), s, &proxy.Changed{Node: true}); !errors.Is(err, proxy.ErrNeedSync) {
		t.Errorf("another address: error %v, want one that asks for a Sync", err)
	}
}

// twice has a remote endpoint beside that of a pod, as some versions of Windows do.
type twice struct {
	*hnstest.Fake
	beside  hns.Endpoint
	deleted bool
	keeps   bool // it cannot be deleted
}

func (x *twice) Endpoints(ctx context.Context) (map[string]hns.Endpoint, error) {
	all, err := x.Fake.Endpoints(ctx)
	if !x.deleted {
		all["beside"] = x.beside
	}
	return all, err
}

func (x *twice) DeleteEndpoint(ctx context.Context, id string) error {
	if id == "beside" && x.keeps {
		return errors.New("HNS says no")
	}
	if id == "beside" {
		x.deleted = true
		return nil
	}
	return x.Fake.DeleteEndpoint(ctx, id)
}

// withTwice returns a node that has a remote endpoint beside the pod 10.0.0.1.
func withTwice() (*node, *twice) {
	n, pod := newNode(hnstest.Full, bridge, mode.Kernelspace{}), netip.MustParseAddr("10.0.0.1")
	x := &twice{Fake: n.fake, beside: hns.Endpoint{Network: n.network, Addrs: []netip.Addr{pod}, MAC: macOf(pod), Remote: true}}
	n.service = x
	return n, x
}

// TestRemoteBesidePod uses the pod's endpoint, and deletes the other.
func TestRemoteBesidePod(t *testing.T) {
	n, x := withTwice()
	pod := netip.MustParseAddr("10.0.0.1")
	n.sync(t, stateOf(service(1, "10.0.0.1:80")))
	if n.inv.endpoints[pod].id != n.pods[pod] || !x.deleted {
		t.Errorf("endpoint %+v is used, want %s; the other is deleted: %t", n.inv.endpoints[pod], n.pods[pod], x.deleted)
	}
}

// TestApplyFindsRemoteBesidePod asks for a Sync, which deletes the remote endpoint, and does not
// ask again if HNS keeps it.
func TestApplyFindsRemoteBesidePod(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		n, x := withTwice()
		x.deleted = true // it is not there yet
		s := stateOf(service(1, "10.1.0.1:80"))
		n.sync(t, s)
		x.deleted, x.keeps = false, keeps
		n.apply(t, s, service(1, "10.0.0.1:80"))
		if x.deleted == keeps {
			t.Errorf("HNS keeps it: %t; it is deleted: %t", keeps, x.deleted)
		}
		n.fake.Reset()
		n.apply(t, s, service(1, "10.0.0.1:80", "10.0.0.2:80"))
		if count, _ := n.fake.Reset(); count["LoadBalancers"] > 0 {
			t.Errorf("HNS keeps it: %t; the next change asked for a Sync", keeps)
		}
	}
}

// TestFlush deletes all load balancers: when a row changes next, all are created anew.
func TestFlush(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80"), service(2, "10.1.0.1:80"))
	n.sync(t, s)
	all, err := n.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for x := range all {
		if err := n.fake.DeleteLoadBalancer(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	n.accept(t, s, service(1, "10.1.0.2:80"))
	n.shows(t, "10.96.0.1:80 protocol 6 to [10.1.0.2]")
	n.wantFresh(t, s)
}

// TestWatch reads the network twice a minute, lists nothing, and reports what only a Sync can
// repair.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(hnstest.Full, overlay, mode.Kernelspace{})
		n.sync(t, stateOf(service(1, "10.1.0.1:80")))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var told []string
		go n.Watch(ctx, nil, func(what string) { told = append(told, what) })
		step := func(want string, do func()) {
			t.Helper()
			told = nil
			do()
			n.fake.Reset()
			time.Sleep(watchInterval + time.Second)
			synctest.Wait()
			n.wantCalls(t, want, hnstest.Count{"Network": 1})
			if got := strings.Join(told, "; "); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		step("", func() {})
		moved := overlay
		moved.ID, moved.Remote = n.network, overlay.Remote[:1]
		step("the subnets of HNS network pods changed", func() { n.fake.SetNetwork(moved) })
		step("", func() { n.fake.Fail(hns.ErrNotRunning) })
		step("the Host Networking Service was restarted", func() { n.fake.Fail(nil) })
		step("HNS network pods was replaced", func() { n.fake.RemoveNetwork(n.network); n.fake.SetNetwork(overlay) })
	})
}

// TestMovedSubnet moves a subnet of pods to another node between two reads.
func TestMovedSubnet(t *testing.T) {
	n := newNode(hnstest.Full, overlay, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80", "10.3.0.1:80"))
	n.sync(t, s)
	moved := overlay
	moved.ID, moved.Remote = n.network, slices.Clone(overlay.Remote)
	moved.Remote[0].Provider = netip.MustParseAddr("192.168.0.9")
	moved.Remote = append(moved.Remote, hns.RemoteSubnet{Prefix: netip.MustParsePrefix("10.3.0.0/16"), Provider: netip.MustParseAddr("192.168.0.10")})
	n.fake.SetNetwork(moved)
	n.sync(t, s)
	n.shows(t, "[10.1.0.1] 02-11-0a-01-00-01 on 192.168.0.9", "[10.3.0.1] 02-11-0a-03-00-01 on 192.168.0.10", "from 10.0.0.250")
}

// TestNewSubnet adds an endpoint on a new node: the network is read again.
func TestNewSubnet(t *testing.T) {
	n := newNode(hnstest.Full, overlay, mode.Kernelspace{})
	s := stateOf(service(1, "10.1.0.1:80"))
	n.sync(t, s)
	more := overlay
	more.ID, more.Remote = n.network, append(slices.Clone(overlay.Remote), hns.RemoteSubnet{Prefix: netip.MustParsePrefix("10.3.0.0/16"), Provider: netip.MustParseAddr("192.168.0.10")})
	n.fake.SetNetwork(more)
	n.apply(t, s, service(1, "10.1.0.1:80", "10.3.0.1:80"))
	n.wantCalls(t, "a node comes", hnstest.Count{"Network": 1, "CreateEndpoint": 1, "UpdateLoadBalancer": 1})
	n.shows(t, "[10.3.0.1] 02-11-0a-03-00-01 on 192.168.0.10")
}

// TestClusterIPAsEndpoint has an EndpointSlice with the ClusterIP of another Service. On an overlay
// network that address is an HNS endpoint of the other Service. In either order the other Service
// is served, and connections are not sent to its ClusterIP.
func TestClusterIPAsEndpoint(t *testing.T) {
	thief, owner := service(1, "10.1.0.1:80", "10.96.0.2:80"), service(2, "10.1.0.2:80")
	for name, rows := range map[string][]*proxy.ServicePort{"thief first": {thief, owner}, "owner first": {owner, thief}, "at once": nil} {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(hnstest.Full, overlay, mode.Kernelspace{}), stateOf()
			n.sync(t, s)
			for _, r := range rows {
				n.apply(t, s, r)
				if text := strings.Join(n.Objects(), "\n"); strings.Contains(text, "gone") {
					t.Errorf("after %v a load balancer has an endpoint that is gone:\n%s", r.Key, text)
				}
			}
			s = stateOf(thief, owner)
			refused, err := n.Sync(t.Context(), s)
			if err != nil || len(refused) != 1 || !strings.Contains(refused[thief.Key].Error(), "a ClusterIP cannot be an endpoint: 10.96.0.2") {
				t.Errorf("refused %v, error %v", refused, err)
			}
			n.shows(t, "endpoint remote [10.96.0.2] 00-15-5d-00-00-01 on 192.168.0.2", "10.96.0.1:80 protocol 6 to [10.1.0.1]", "10.96.0.2:80 protocol 6 to [10.1.0.2]")
			n.apply(t, s, service(1, "10.1.0.1:80"))
			n.shows(t, "[10.96.0.2]")
			n.apply(t, s, thief)
			delete(s.Rows, owner.Key)
			if _, err := n.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{owner.Key}}); err != nil {
				t.Fatal(err)
			}
			n.accept(t, s, thief)
		})
	}
}

// picky refuses to create an endpoint.
type picky struct {
	*hnstest.Fake
	no netip.Addr
}

func (p *picky) CreateEndpoint(ctx context.Context, e hns.Endpoint) (string, error) {
	if e.Addrs[0] == p.no {
		return "", errors.New("HNS says no")
	}
	return p.Fake.CreateEndpoint(ctx, e)
}

// TestRefusedClusterIP makes HNS refuse the endpoint of a ClusterIP, which an overlay network
// needs: its row is refused, and complete when it is retried.
func TestRefusedClusterIP(t *testing.T) {
	n, s := newNode(hnstest.Full, overlay, mode.Kernelspace{}), stateOf()
	p := &picky{n.fake, netip.MustParseAddr("10.96.0.1")}
	n.service = p
	n.sync(t, s)
	if refused := n.apply(t, s, service(1, "10.1.0.1:80")); len(refused) != 1 {
		t.Errorf("refused %v; want the row", refused)
	}
	p.no = netip.Addr{}
	n.accept(t, s, s.Rows[service(1).Key])
	n.shows(t, "endpoint remote [10.96.0.1]")
}

// TestPodMovesHere moves a pod's address to this node: its local endpoint is used, and the remote
// one is deleted.
func TestPodMovesHere(t *testing.T) {
	n, pod := newNode(hnstest.Full, bridge, mode.Kernelspace{}), netip.MustParseAddr("10.1.0.1")
	s, here := stateOf(service(1, "10.1.0.1:80")), service(1, "10.1.0.1:80")
	n.sync(t, s)
	here.Cluster[0].Local = true
	n.pods[pod] = "not before the remote one is gone"
	if refused := n.apply(t, s, here); len(refused) != 1 {
		t.Errorf("refused %v; want the Service of the pod that has no endpoint yet", refused)
	}
	n.pods[pod] = n.runPod(t.Context(), pod)
	n.accept(t, s, here)
	n.wantFresh(t, s)
}

// TestPodMovesAway moves a pod's address to another node, in one change.
func TestPodMovesAway(t *testing.T) {
	n, pod := newNode(hnstest.Full, bridge, mode.Kernelspace{}), netip.MustParseAddr("10.0.0.1")
	s, away := stateOf(service(1, "10.0.0.1:80")), service(1, "10.0.0.1:80")
	n.sync(t, s)
	if err := n.fake.DeleteEndpoint(t.Context(), n.pods[pod]); err != nil {
		t.Fatal(err)
	}
	n.fake.Reset()
	away.Cluster[0].Local, away.Local = false, nil
	n.accept(t, s, away)
	n.wantCalls(t, "it moves", hnstest.Count{"Endpoints": 1, "CreateEndpoint": 1, "UpdateLoadBalancer": 1})
	n.wantFresh(t, s)
}

// TestSource checks the source address that endpoints on an overlay network see.
func TestSource(t *testing.T) {
	for to, want := range map[string]netip.Addr{"10.0.0.1:80": source, "10.1.0.1:80": source, "192.168.0.3:80": host, "8.8.8.8:80": host} {
		n := newNode(hnstest.Full, overlay, mode.Kernelspace{})
		n.sync(t, stateOf(service(1, to)))
		n.shows(t, "from "+want.String())
	}
}

// TestLimits checks that rows that HNS cannot serve in full are refused, with the reason.
func TestLimits(t *testing.T) {
	few := hns.Features{DualStack: true, ModifyLoadBalancer: true}
	ranges := with(service(1, "10.1.0.1:80"), 1)
	ranges.AllowFrom = []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")}
	closed := with(service(1, "10.1.0.1:80"), 1)
	closed.AllowFrom = []netip.Prefix{}
	sctp := service(1, "10.1.0.1:80")
	sctp.Key.Protocol = proxy.SCTP
	sticky := service(1, "10.1.0.1:80")
	sticky.Affinity = 1
	local := with(service(1, "10.0.0.1:80"), 1)
	local.External = proxy.ScopeLocal
	some := stateOf(with(service(1, "10.1.0.1:80"), 1))
	some.Node.NodePorts = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
	for _, tt := range []struct {
		name     string
		features hns.Features
		state    *proxy.State
		want     string
		without  string // which is not served
	}{
		{"source ranges", hnstest.Full, stateOf(ranges), "1.0.0.1:80 is not served: HNS cannot restrict clients to loadBalancerSourceRanges", "1.0.0.1:80"},
		{"source ranges that admit nobody", hnstest.Full, stateOf(closed), "1.0.0.1:80 is not served: HNS cannot restrict clients to loadBalancerSourceRanges", "1.0.0.1:80"},
		{"SCTP", hnstest.Full, stateOf(sctp), "HNS has no load balancers for SCTP", "10.96.0.1:80"},
		{"ports", hnstest.Full, stateOf(service(1, "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:81")), "10.1.0.3:81 and 0 more get no connections", "10.1.0.3"},
		{"affinity", few, stateOf(sticky), "clients do not keep their endpoint", "ByClient"},
		{"clients", few, stateOf(local), "clients of 1.0.0.1:80 are hidden", "DSR"},
		{"addresses", hnstest.Full, some, "NodePort 30001 is not served: HNS cannot restrict NodePorts to nodePortAddresses", "30001"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(tt.features, bridge, mode.Kernelspace{})
			refused, err := n.Sync(t.Context(), tt.state)
			if err != nil || len(refused) != 1 {
				t.Fatalf("refused %v, error %v", refused, err)
			}
			for key, why := range refused {
				if !strings.Contains(why.Error(), tt.want) {
					t.Errorf("refused for %q, want %q", why, tt.want)
				}
				n.fake.Reset()
				again, err := n.Apply(t.Context(), tt.state, &proxy.Changed{Rows: []proxy.PortKey{key}})
				if err != nil || again[key] == nil {
					t.Errorf("tried again: refused %v, error %v", again, err)
				}
				n.wantCalls(t, "tried again", hnstest.Count{})
			}
			if text := strings.Join(n.Objects(), "\n"); strings.Contains(text, tt.without) {
				t.Errorf("%s is served:\n%s", tt.without, text)
			}
		})
	}
}

// TestLateOverlay creates an overlay network after Probe found both families: that of the source
// VIP is served.
func TestLateOverlay(t *testing.T) {
	n, row6 := newNode(hnstest.Full, overlay, mode.Kernelspace{}), service(6, "[fd00:1::5]:80")
	n.only4 = false
	row6.Key.Family, row6.Frontends[0].Addr = proxy.IPv6, netip.MustParseAddrPort("[fd00:96::1]:80")
	refused, err := n.Sync(t.Context(), stateOf(row6, service(1, "10.1.0.1:80")))
	if err != nil || len(refused) != 1 || refused[row6.Key] == nil {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if text := strings.Join(n.Objects(), "\n"); strings.Contains(text, "fd00:") || !strings.Contains(text, "10.96.0.1:80") {
		t.Errorf("IPv6 is served, or IPv4 is not:\n%s", text)
	}
}

// TestNarrowing adds source ranges to a Service that is served: it is no longer served, rather than
// open to all.
func TestNarrowing(t *testing.T) {
	n := newNode(hnstest.Full, bridge, mode.Kernelspace{})
	s := stateOf(with(service(1, "10.1.0.1:80"), 1))
	n.sync(t, s)
	narrow := with(service(1, "10.1.0.1:80"), 1)
	narrow.AllowFrom = []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")}
	if refused := n.apply(t, s, narrow); len(refused) != 1 {
		t.Errorf("refused %v", refused)
	}
	if text := strings.Join(n.Objects(), "\n"); strings.Contains(text, "1.0.0.1:80") || !strings.Contains(text, "10.96.0.1:80") {
		t.Errorf("the address is open, or the ClusterIP is not:\n%s", text)
	}
}

// TestProbe checks which families are supported, and the errors if something is missing.
func TestProbe(t *testing.T) {
	full, four := hnstest.Full, hnstest.Full
	four.DualStack = false
	noDSR := full
	noDSR.DSR = false
	noOverlay := full
	noOverlay.RemoteSubnet = false
	for _, tt := range []struct {
		name     string
		features hns.Features
		network  hns.Network
		options  mode.Kernelspace
		families []proxy.Family
		want     string
	}{
		{"all", full, bridge, mode.Kernelspace{Network: "pods"}, proxy.Families[:], ""},
		{"no network yet", full, hns.Network{Name: "other"}, mode.Kernelspace{Network: "pods"}, proxy.Families[:], ""},
		{"one family", four, bridge, mode.Kernelspace{Network: "pods"}, []proxy.Family{proxy.IPv4}, ""},
		{"overlay", full, overlay, mode.Kernelspace{Network: "pods", SourceVIP: source}, []proxy.Family{proxy.IPv4}, ""},
		{"no name", full, bridge, mode.Kernelspace{}, nil, "use --network-name"},
		{"no source VIP", full, overlay, mode.Kernelspace{Network: "pods"}, nil, "needs --source-vip"},
		{"no overlays", noOverlay, overlay, mode.Kernelspace{Network: "pods", SourceVIP: source}, nil, "does not support service proxies on overlay networks"},
		{"no DSR", noDSR, bridge, mode.Kernelspace{Network: "pods", DSR: true}, nil, "remove --enable-dsr"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := ModeWith(hnstest.NewFake(tt.features, tt.network))
			families, err := m.Probe(t.Context(), mode.Settings{Kernelspace: tt.options})
			if tt.want == "" && (err != nil || !slices.Equal(families, tt.families)) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("families %v, error %v; want %v, %q", families, err, tt.families, tt.want)
			}
		})
	}
}
