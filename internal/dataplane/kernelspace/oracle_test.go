package kernelspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
	"sluice/internal/proxy"
)

// node is a node with HNS in memory and a network plugin, which creates the endpoint of a pod when
// the pod becomes an endpoint of a Service on this node.
type node struct {
	*Dataplane
	fake    *hnstest.Fake
	network string // its ID
	only4   bool
	pods    map[netip.Addr]string // IDs of their endpoints

	named map[string]int // cases that HNS cannot do, by the reason
	exact *int           // those that it can
}

var (
	host   = netip.MustParseAddr("192.168.0.2")
	source = netip.MustParseAddr("10.0.0.250")
	macs   = map[netip.Addr]string{host: "00:15:5D:00:00:01", netip.MustParseAddr("2001:db8::1"): "00:15:5D:00:00:01"}

	bridge  = hns.Network{Name: "pods", Type: "L2Bridge"}
	overlay = hns.Network{Name: "pods", Type: "Overlay", Remote: []hns.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Provider: netip.MustParseAddr("192.168.0.3")},
		{Prefix: netip.MustParsePrefix("10.2.0.0/16"), Provider: netip.MustParseAddr("192.168.0.4")},
	}}
)

// newNode returns a node that has only a network.
func newNode(f hns.Features, n hns.Network, o mode.Kernelspace) *node {
	fake := hnstest.NewFake(f)
	o.Network = n.Name
	if n.Type == "Overlay" {
		o.SourceVIP = source
	}
	x := &node{fake: fake, network: fake.SetNetwork(n), only4: n.Type == "Overlay", pods: map[netip.Addr]string{}}
	x.Dataplane = x.open(o)
	return x
}

// open returns another dataplane on the node.
func (n *node) open(o mode.Kernelspace) *Dataplane {
	return New(n.fake, func() (map[netip.Addr]string, error) { return macs, nil }, mode.Settings{Kernelspace: o})
}

func (n *node) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	want = n.served(want)
	n.runPods(ctx, want, slices.Collect(maps.Keys(want.Rows)))
	return n.Dataplane.Sync(ctx, want)
}

func (n *node) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	want = n.served(want)
	n.runPods(ctx, want, changed.Rows)
	return n.Dataplane.Apply(ctx, want, changed)
}

// served returns the families that Probe finds.
func (n *node) served(s *proxy.State) *proxy.State {
	if !n.only4 {
		return s
	}
	out := *s
	out.Rows = maps.Clone(s.Rows)
	maps.DeleteFunc(out.Rows, func(k proxy.PortKey, _ *proxy.ServicePort) bool { return k.Family == proxy.IPv6 })
	return &out
}

// runPods creates the endpoints of pods of this node.
func (n *node) runPods(ctx context.Context, s *proxy.State, rows []proxy.PortKey) {
	for _, key := range rows {
		if s.Rows[key] == nil {
			continue
		}
		for _, e := range slices.Concat(s.Rows[key].Cluster, s.Rows[key].Local) {
			if a := e.Addr.Addr(); e.Local && n.pods[a] == "" {
				n.pods[a] = n.runPod(ctx, a)
			}
		}
	}
}

func (n *node) runPod(ctx context.Context, a netip.Addr) string {
	x, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Network: n.network, Name: "pod " + a.String(), Addrs: []netip.Addr{a}, MAC: "00-15-5d-01-02-03"})
	if err != nil {
		panic(err) // the test's own doing
	}
	return x
}

// Objects returns the objects of HNS, except those of pods.
func (n *node) Objects() []string {
	return slices.DeleteFunc(n.fake.State(), func(s string) bool { return strings.HasPrefix(s, "endpoint local") })
}

// decision is what HNS would do with a packet.
type decision struct {
	to    map[netip.AddrPort]bool // empty: it leaves the packet alone
	shown bool                    // endpoints see the client
}

// decide derives the decision from the objects alone. HNS matches neither the client's address nor
// where it is, and never sees packets to a loopback address.
func (n *node) decide(p proxy.Packet) (decision, error) {
	balancers, err := n.fake.LoadBalancers(context.Background())
	if err != nil {
		return decision{}, err
	}
	endpoints, err := n.fake.Endpoints(context.Background())
	if err != nil {
		return decision{}, err
	}
	six := p.Dst.Addr().Is6()
	find := func(vip netip.Addr) *hns.LoadBalancer {
		for _, l := range balancers {
			if l.VIP == vip && l.Family6 == six && l.Protocol == uint8(p.Protocol) && l.ExternalPort == p.Dst.Port() {
				return &l
			}
		}
		return nil
	}
	l := find(p.Dst.Addr())
	if l == nil && p.DstLocal && !p.Dst.Addr().IsLoopback() {
		l = find(netip.Addr{})
	}
	d := decision{to: map[netip.AddrPort]bool{}}
	if l == nil {
		return d, nil
	}
	d.shown = l.Flags&hns.DSR != 0 || !l.SourceVIP.IsValid()
	for _, x := range l.Endpoints {
		e, ok := endpoints[x]
		if !ok {
			return d, fmt.Errorf("the load balancer of %v has endpoint %s, which is gone", p.Dst, x)
		}
		for _, a := range e.Addrs {
			if a.Is6() == six {
				d.to[netip.AddrPortFrom(a, l.InternalPort)] = true
			}
		}
	}
	return d, nil
}

// Judge compares what HNS would do with what the table expects, or with the documented result if
// HNS cannot do that.
func (n *node) Judge(s *proxy.State, p proxy.Packet, want conformance.Expect) error {
	if n.only4 && p.Dst.Addr().Is6() {
		return nil
	}
	got, err := n.decide(p)
	if err != nil {
		return err
	}
	to := map[netip.AddrPort]bool{}
	for a := range want.To {
		to[a] = true
	}
	o := s.Outcome(p)
	if why, instead := cannot(s, o, p, to); why != "" {
		n.named[why]++
		to = instead
	} else {
		*n.exact++
	}
	if !maps.Equal(got.to, to) {
		return fmt.Errorf("HNS leads to %v, instead of %v", sorted(got.to), sorted(to))
	}
	if len(to) > 0 && o.Route.Why == proxy.ShownLocal && !got.shown {
		return fmt.Errorf("HNS hides the client, which externalTrafficPolicy Local shows")
	}
	return nil
}

// cannot returns why HNS cannot do what is expected, and where it sends the connection instead.
func cannot(s *proxy.State, o proxy.Outcome, p proxy.Packet, to map[netip.AddrPort]bool) (why string, instead map[netip.AddrPort]bool) {
	everywhere := slices.ContainsFunc(s.Node.NodePorts, func(c netip.Prefix) bool {
		return c.Bits() == 0 && proxy.FamilyOf(c.Addr()) == proxy.FamilyOf(p.Dst.Addr())
	})
	switch f := o.Frontend; {
	case o.Verdict != proxy.Forward:
	case p.Protocol == proxy.SCTP:
		why = "SCTP"
	case o.Route.From != nil:
		why = "source ranges"
	case f.Kind == proxy.NodePort && p.Dst.Addr().IsLoopback():
		why = "NodePorts on loopback"
	case f.Kind == proxy.NodePort && !everywhere:
		why = "NodePorts on some addresses"
	case f.Kind != proxy.ClusterIP && o.Origin != proxy.Elsewhere && o.Row.External == proxy.ScopeLocal:
		why, instead = "clients here take the Cluster list", endpointsOf(o.Row.Local)
	default:
		if instead = endpointsOf(o.Route.To); len(instead) < len(to) {
			why = "several target ports"
		}
	}
	served := o.Frontend.Kind == proxy.NodePort || len(instead) > 0 || !everywhere || p.Dst.Addr().IsLoopback()
	if under := shadowed(s, p); p.DstLocal && !served && len(under) > 0 {
		return "a NodePort beneath an address of the node", under
	}
	return why, instead
}

// endpointsOf returns the endpoints of a list that a load balancer can have.
func endpointsOf(list []proxy.Endpoint) map[netip.AddrPort]bool {
	counts, out := map[uint16]int{}, map[netip.AddrPort]bool{}
	var best uint16
	for _, e := range list {
		counts[e.Addr.Port()]++
	}
	for _, port := range slices.Sorted(maps.Keys(counts)) {
		if counts[port] > counts[best] {
			best = port
		}
	}
	for _, e := range list {
		if e.Addr.Port() == best {
			out[e.Addr] = true
		}
	}
	return out
}

// shadowed returns where the NodePort with the port of a packet leads.
func shadowed(s *proxy.State, p proxy.Packet) map[netip.AddrPort]bool {
	for _, sp := range s.Rows {
		for _, f := range sp.Frontends {
			if f.Kind == proxy.NodePort && f.Addr.Port() == p.Dst.Port() && sp.Key.Protocol == p.Protocol && sp.Key.Family == proxy.FamilyOf(p.Dst.Addr()) {
				return endpointsOf(sp.List(sp.External))
			}
		}
	}
	return nil
}

func sorted(m map[netip.AddrPort]bool) []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(m), netip.AddrPort.Compare)
}

// model runs the packet table against a node with a network.
func model(n hns.Network, named map[string]int, exact *int) conformance.Model {
	return conformance.Model{Mode: "kernelspace", Open: func() conformance.ModelRun {
		x := newNode(hnstest.Full, n, mode.Kernelspace{})
		x.named, x.exact = named, exact
		return x
	}}
}

// TestConformance runs the whole packet table.
func TestConformance(t *testing.T) {
	for _, n := range []hns.Network{bridge, overlay} {
		t.Run(n.Type, func(t *testing.T) {
			named, exact := map[string]int{}, 0
			conformance.RunModel(t, model(n, named, &exact))
			t.Logf("%d answers as in the table; HNS cannot do: %v", exact, named)
		})
	}
}

// TestRandom runs random states: increments lead to the same objects as a fresh build.
func TestRandom(t *testing.T) {
	for _, n := range []hns.Network{bridge, overlay} {
		t.Run(n.Type, func(t *testing.T) {
			named, exact := map[string]int{}, 0
			conformance.RunRandomModel(t, model(n, named, &exact), 1, 100)
			t.Logf("%d answers as in the table; HNS cannot do: %v", exact, named)
		})
	}
}
