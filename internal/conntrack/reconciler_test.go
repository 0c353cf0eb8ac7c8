package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// row returns a UDP row with a name, described by a line: frontends by "cluster=", "lb=", "ext="
// and "node=", endpoints by "to=", "local=" and "draining=".
func row(name, line string) *proxy.ServicePort {
	sp := &proxy.ServicePort{Key: proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: name, Protocol: proxy.UDP}}}
	for word := range strings.FieldsSeq(line) {
		what, value, _ := strings.Cut(word, "=")
		switch what {
		case "sctp":
			sp.Key.Protocol = proxy.SCTP
			continue
		case "tcp":
			sp.Key.Protocol = proxy.TCP
			continue
		case "external-local":
			sp.External = proxy.ScopeLocal
			continue
		case "internal-local":
			sp.Internal = proxy.ScopeLocal
			continue
		}
		a := netip.MustParseAddrPort(value)
		switch what {
		case "cluster":
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ClusterIP, Addr: a})
		case "lb":
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: a})
		case "ext":
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: a})
		case "node":
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: a})
		case "to":
			sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: a})
		case "local":
			sp.Local = append(sp.Local, proxy.Endpoint{Addr: a, Local: true})
		case "draining":
			sp.Draining = append(sp.Draining, a)
		default:
			panic("unknown word " + word)
		}
	}
	sp.Key.Family = proxy.FamilyOf(sp.Frontends[0].Addr.Addr())
	return sp
}

// flow returns a tracked UDP flow from a client to a frontend, with replies from by.
func flow(dst, by string) ct.Flow {
	src := netip.MustParseAddrPort("203.0.113.9:4000")
	a, b := netip.MustParseAddrPort(dst), netip.MustParseAddrPort(by)
	if a.Addr().Is6() {
		src = netip.MustParseAddrPort("[2001:db8:9::9]:4000")
	}
	return ct.Flow{
		Protocol: uint8(proxy.UDP),
		Orig:     ct.Tuple{Src: src, Dst: a},
		Reply:    ct.Tuple{Src: b, Dst: src},
	}
}

func over(p proxy.Protocol, f ct.Flow) ct.Flow {
	f.Protocol = uint8(p)
	return f
}

func inZone(zone uint16, f ct.Flow) ct.Flow {
	f.Zone = zone
	return f
}

// nodeWith returns a node that accepts NodePorts within prefixes.
func nodeWith(prefixes ...string) *proxy.Node {
	n := &proxy.Node{Name: "here"}
	for _, p := range prefixes {
		n.NodePorts = append(n.NodePorts, netip.MustParsePrefix(p))
	}
	return n
}

// pass is what was done for one family.
type pass struct {
	Family  proxy.Family
	Elapsed time.Duration
	Deleted int
}

// bench is a Reconciler on a Fake, running in fake time.
type bench struct {
	t      *testing.T
	rec    *Reconciler
	kernel *cttest.Fake
	state  *proxy.State
	passes []pass
	log    func() string
}

// run plays a test on a node with two addresses and a range that a local route gives it,
// which all take NodePorts.
func run(t *testing.T, play func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, kernel: cttest.NewFake(), state: proxy.NewState()}
		b.state.Node = nodeWith("0.0.0.0/0", "::/0")
		b.rec = New(Settings{
			Flows: b.kernel,
			LocalAddrs: func() ([]netip.Prefix, error) {
				return nodeWith("192.168.0.2/32", "192.168.1.2/32", "198.51.100.128/25", "127.0.0.0/8", "2001:db8::1/128").NodePorts, nil
			},
			Passed: func(f proxy.Family, took time.Duration, deleted int) {
				b.passes = append(b.passes, pass{f, took, deleted})
			},
		})
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(4)))
		b.log = func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error)
		go func() { ended <- b.rec.Run(ctx) }()
		play(b)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// apply tells the Reconciler of rows that are new or changed, and of some that
// go, before and after they are written.
func (b *bench) apply(rows []*proxy.ServicePort, gone ...*proxy.ServicePort) {
	b.applied(b.applying(rows, gone...))
}

// applying announces a step.
func (b *bench) applying(rows []*proxy.ServicePort, gone ...*proxy.ServicePort) *proxy.Delta {
	d := &proxy.Delta{Removes: gone}
	for _, r := range rows {
		d.Upserts = append(d.Upserts, proxy.Upsert{Old: b.state.Rows[r.Key], New: r})
	}
	b.rec.Applying(d)
	return d
}

// applied says that a step was taken.
func (b *bench) applied(d *proxy.Delta) {
	b.state.Apply(d)
	b.rec.Applied(b.state.Node, d, d.Empty())
}

// settle waits until nothing is watched any more.
func (b *bench) settle() {
	time.Sleep(2 * watchTime)
	synctest.Wait()
}

// settled applies rows and forgets what that cost.
func (b *bench) settled(rows ...*proxy.ServicePort) {
	b.apply(rows)
	b.settle()
	b.kernel.Reset()
	b.passes = nil
}

func (b *bench) wantFlows(want ...ct.Flow) {
	b.t.Helper()
	synctest.Wait()
	got := []string{}
	for _, f := range b.kernel.Flows() {
		got = append(got, f.String())
	}
	text := []string{}
	for _, f := range want {
		text = append(text, f.String())
	}
	if diff := cmp.Diff(text, got); diff != "" {
		b.t.Errorf("flows mismatch (-want +got):\n%s", diff)
	}
}

// TestSteps takes one step from one row to another, or to none. All flows are
// tracked before the step, after the row was settled.
func TestSteps(t *testing.T) {
	const vip, pod1, pod2 = "10.96.0.10:53", "10.1.0.1:5353", "10.1.0.2:5353"
	const both = "cluster=10.96.0.10:53 to=10.1.0.1:5353 to=10.1.0.2:5353"
	const all = both + " lb=198.51.100.1:53 ext=192.0.2.1:53 node=0.0.0.0:30053"
	one, two := flow(vip, pod1), flow(vip, pod2)
	tests := []struct {
		name     string
		from, to string // empty: no row
		flows    []ct.Flow
		want     []ct.Flow
	}{
		{"endpoint removed", both, "cluster=10.96.0.10:53 to=10.1.0.1:5353", []ct.Flow{one, two}, []ct.Flow{one}},
		{"endpoint added", "cluster=10.96.0.10:53 to=10.1.0.1:5353", both, []ct.Flow{one}, []ct.Flow{one}},
		{"endpoint drains", both, "cluster=10.96.0.10:53 to=10.1.0.1:5353 draining=10.1.0.2:5353", []ct.Flow{one, two}, []ct.Flow{one, two}},
		{
			"endpoint has drained", "cluster=10.96.0.10:53 to=10.1.0.1:5353 draining=10.1.0.2:5353",
			"cluster=10.96.0.10:53 to=10.1.0.1:5353",
			[]ct.Flow{one, two},
			[]ct.Flow{one},
		},
		{"zone hints leave an endpoint out", both, "cluster=10.96.0.10:53 to=10.1.0.1:5353 draining=10.1.0.2:5353", []ct.Flow{two}, []ct.Flow{two}},
		{
			"policy becomes Local", both, "cluster=10.96.0.10:53 internal-local local=10.1.0.1:5353 draining=10.1.0.2:5353",
			[]ct.Flow{one, two},
			[]ct.Flow{one, two},
		},
		{
			"policy Local without a local endpoint becomes Cluster", "cluster=10.96.0.10:53 node=0.0.0.0:30053 internal-local to=10.1.0.1:5353",
			"cluster=10.96.0.10:53 node=0.0.0.0:30053 to=10.1.0.1:5353",
			[]ct.Flow{flow(vip, vip)},
			nil,
		},
		{
			"case ct-02 of the packet table", "", "cluster=172.30.1.2:8000 to=10.240.0.5:9090 draining=10.240.0.4:9090",
			[]ct.Flow{flow("172.30.1.2:8000", "10.240.0.4:9090"), flow("172.30.1.2:8000", "10.240.2.6:9090")},
			[]ct.Flow{flow("172.30.1.2:8000", "10.240.0.4:9090")},
		},
		{"last endpoint removed", both, "cluster=10.96.0.10:53", []ct.Flow{one, two}, nil},
		{"Service deleted", both, "", []ct.Flow{one, two}, nil},
		{"Service port changed", both, "cluster=10.96.0.10:54 to=10.1.0.1:5353 to=10.1.0.2:5353", []ct.Flow{one, two}, nil},
		{"endpoint port changed", both, "cluster=10.96.0.10:53 to=10.1.0.1:5300 to=10.1.0.2:5353", []ct.Flow{one, two}, []ct.Flow{two}},
		{
			"endpoints changed, every frontend", all, all[:strings.Index(all, " to=10.1.0.2")] + " lb=198.51.100.1:53 ext=192.0.2.1:53 node=0.0.0.0:30053",
			[]ct.Flow{
				flow("198.51.100.1:53", pod1), flow("198.51.100.1:53", pod2), flow("192.0.2.1:53", pod1), flow("192.0.2.1:53", pod2),
				flow("192.168.0.2:30053", pod1), flow("192.168.0.2:30053", pod2),
			},
			[]ct.Flow{flow("198.51.100.1:53", pod1), flow("192.0.2.1:53", pod1), flow("192.168.0.2:30053", pod1)},
		},
		{
			"all frontends but one removed", all, both,
			[]ct.Flow{one, flow("198.51.100.1:53", pod1), flow("192.0.2.1:53", pod1), flow("192.168.0.2:30053", pod1), flow("192.168.1.2:30053", pod1)},
			[]ct.Flow{one},
		},
		{
			"externalIP added to an untranslated flow", both, both + " ext=192.0.2.1:53",
			[]ct.Flow{one, flow("192.0.2.1:53", "192.0.2.1:53")},
			[]ct.Flow{one},
		},
		{
			"load balancer and NodePort added to untranslated flows", both, all,
			[]ct.Flow{flow("198.51.100.1:53", "198.51.100.1:53"), flow("192.168.0.2:30053", "192.168.0.2:30053")},
			nil,
		},
		{
			"externalIP added without endpoints", "cluster=10.96.0.10:53", "cluster=10.96.0.10:53 ext=192.0.2.1:53",
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
		},
		{
			"the first endpoint meets an untranslated flow", "cluster=10.96.0.10:53 ext=192.0.2.1:53", both + " ext=192.0.2.1:53",
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
			nil,
		},
		{
			"untranslated flow to a frontend that goes", both + " ext=192.0.2.1:53", both,
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
		},
		{
			"an endpoint at the frontend's own address", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=192.0.2.1:53 to=10.1.0.2:5353",
			"cluster=10.96.0.10:53 ext=192.0.2.1:53 to=192.0.2.1:53",
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53"), flow("192.0.2.1:53", pod2)},
			[]ct.Flow{flow("192.0.2.1:53", "192.0.2.1:53")},
		},
		{
			"NodePort number at another address", "node=0.0.0.0:30053 to=10.1.0.1:5353", "",
			[]ct.Flow{flow("192.168.0.2:30053", pod1), flow("203.0.113.77:30053", "203.0.113.77:30053"), flow("203.0.113.77:30053", "10.7.0.1:53")},
			[]ct.Flow{flow("203.0.113.77:30053", "203.0.113.77:30053"), flow("203.0.113.77:30053", "10.7.0.1:53")},
		},
		{
			"NodePort at an address of a local route", "node=0.0.0.0:30053 to=10.1.0.1:5353", "node=0.0.0.0:30053 to=10.1.0.2:5353",
			[]ct.Flow{flow("198.51.100.200:30053", pod1), flow("198.51.100.200:30053", pod2), flow("198.51.100.200:30053", "198.51.100.200:30053")},
			[]ct.Flow{flow("198.51.100.200:30053", pod2)},
		},
		{
			"endpoint replaced while a virtual address is away", "node=0.0.0.0:30053 to=10.1.0.1:5353", "node=0.0.0.0:30053 to=10.1.0.2:5353",
			[]ct.Flow{flow("198.51.100.1:30053", pod1), flow("198.51.100.1:30053", pod2), flow("198.51.100.1:30054", pod1)},
			[]ct.Flow{flow("198.51.100.1:30053", pod2), flow("198.51.100.1:30054", pod1)},
		},
		{
			"NodePort removed while a virtual address is away", "cluster=10.96.0.10:53 node=0.0.0.0:30053 to=10.1.0.1:5353", "cluster=10.96.0.10:53 to=10.1.0.1:5353",
			[]ct.Flow{one, flow("198.51.100.1:30053", pod1)},
			[]ct.Flow{one},
		},
		{
			"NodePort on loopback is none", "node=0.0.0.0:30053 to=10.1.0.1:5353", "",
			[]ct.Flow{flow("127.0.0.1:30053", pod1)},
			[]ct.Flow{flow("127.0.0.1:30053", pod1)},
		},
		{
			"others' flows", both, "",
			[]ct.Flow{flow("10.96.0.10:54", pod1), flow("10.96.0.11:53", pod1), over(proxy.TCP, one), over(proxy.SCTP, one), inZone(3, one)},
			[]ct.Flow{flow("10.96.0.10:54", pod1), flow("10.96.0.11:53", pod1), over(proxy.TCP, one), over(proxy.SCTP, one), inZone(3, one)},
		},
		{
			"SCTP", "sctp " + both, "sctp cluster=10.96.0.10:53 to=10.1.0.1:5353",
			[]ct.Flow{over(proxy.SCTP, one), over(proxy.SCTP, two), two},
			[]ct.Flow{over(proxy.SCTP, one), two},
		},
		{"TCP", "tcp " + both, "", []ct.Flow{over(proxy.TCP, one)}, []ct.Flow{over(proxy.TCP, one)}},
		{
			"IPv6", "cluster=[fd96::a]:53 node=[::]:30053 to=[fd00::1]:53 to=[fd00::2]:53", "cluster=[fd96::a]:53 node=[::]:30053 to=[fd00::1]:53",
			[]ct.Flow{flow("[fd96::a]:53", "[fd00::1]:53"), flow("[fd96::a]:53", "[fd00::2]:53"), flow("[2001:db8::1]:30053", "[fd00::2]:53"), flow("[2001:db8::7]:30053", "[fd00::7]:53")},
			[]ct.Flow{flow("[fd96::a]:53", "[fd00::1]:53"), flow("[2001:db8::7]:30053", "[fd00::7]:53")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(b *bench) {
				var old *proxy.ServicePort
				if tt.from != "" {
					old = row("dns", tt.from)
					b.settled(old)
				}
				b.kernel.Add(tt.flows...)
				if tt.to != "" {
					b.apply([]*proxy.ServicePort{row("dns", tt.to)})
				} else {
					b.apply(nil, old)
				}
				b.wantFlows(tt.want...)
			})
		})
	}
}

// TestStart checks everything that is ours once, and keeps what is right.
func TestStart(t *testing.T) {
	run(t, func(b *bench) {
		right := []ct.Flow{
			flow("10.96.0.10:53", "10.1.0.1:5353"), flow("192.168.0.2:30053", "10.1.0.1:5353"), flow("8.8.8.8:53", "8.8.8.8:53"),
			flow("[fd96::a]:53", "[fd00::1]:53"),
		}
		b.kernel.Add(right...)
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.9:5353"), flow("10.96.0.11:53", "10.1.0.1:5353"), flow("10.96.0.10:53", "10.96.0.10:53"),
			flow("192.168.0.2:30053", "192.168.0.2:30053"), flow("[fd96::a]:53", "[fd00::9]:53"))
		b.apply([]*proxy.ServicePort{
			row("dns", "cluster=10.96.0.10:53 node=0.0.0.0:30053 to=10.1.0.1:5353"), row("empty", "cluster=10.96.0.11:53"),
			row("dns6", "cluster=[fd96::a]:53 to=[fd00::1]:53"),
		})
		b.wantFlows(right...)
		if c := b.kernel.Reset(); c.Dumps != 2 || c.Deletes != 5 {
			t.Errorf("%d dumps, %d deletions; want 2, 5", c.Dumps, c.Deletes)
		}
		want := []pass{{proxy.IPv4, 0, 4}, {proxy.IPv6, 0, 1}}
		if diff := cmp.Diff(want, b.passes); diff != "" {
			t.Errorf("passes mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestMove moves a frontend from one row to another.
func TestMove(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("a", "cluster=10.96.0.1:53 ext=192.0.2.1:53 to=10.1.0.1:53"), row("b", "cluster=10.96.0.2:53 to=10.1.0.2:53"))
		b.kernel.Add(flow("10.96.0.1:53", "10.1.0.1:53"), flow("192.0.2.1:53", "10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{
			row("b", "cluster=10.96.0.2:53 ext=192.0.2.1:53 to=10.1.0.2:53"), row("a", "cluster=10.96.0.1:53 to=10.1.0.1:53"),
		})
		b.wantFlows(flow("10.96.0.1:53", "10.1.0.1:53"))
		b.kernel.Add(flow("192.0.2.1:53", "10.1.0.2:53"))
		b.apply(nil, b.state.Rows[row("a", "cluster=10.96.0.1:53").Key])
		b.wantFlows(flow("192.0.2.1:53", "10.1.0.2:53"))
	})
}

// TestNodePortAddresses changes which addresses accept NodePorts.
func TestNodePortAddresses(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 node=0.0.0.0:30053 to=10.1.0.1:53"))
		right := []ct.Flow{flow("192.168.0.2:30053", "10.1.0.1:53"), flow("203.0.113.77:30053", "10.1.0.1:53")}
		b.kernel.Add(append(right, flow("192.168.1.2:30053", "10.1.0.1:53"))...)
		step := &proxy.Delta{Node: nodeWith("192.168.0.0/24")}
		b.state.Apply(step)
		b.rec.Applied(b.state.Node, step, false)
		b.wantFlows(right...)

		b.settle()
		b.kernel.Add(flow("192.168.1.2:30053", "192.168.1.2:30053"))
		step = &proxy.Delta{Node: nodeWith("192.168.0.0/16")}
		b.state.Apply(step)
		b.rec.Applied(b.state.Node, step, false)
		b.wantFlows(right...)
	})
}

// TestLoopbackNodePorts ends flows to all of 127.0.0.0/8 if the loopback addresses accept
// NodePorts.
func TestLoopbackNodePorts(t *testing.T) {
	run(t, func(b *bench) {
		b.state.Node.LocalhostNodePorts = true
		b.settled(row("dns", "node=0.0.0.0:30053 to=10.1.0.1:53"))
		b.kernel.Add(flow("127.0.0.1:30053", "10.1.0.1:53"), flow("127.0.0.2:30053", "10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{row("dns", "node=0.0.0.0:30053 to=10.1.0.2:53")})
		b.wantFlows()
	})
}

// TestLoopbackStopsNodePorts ends flows to a loopback address that no longer accepts NodePorts.
func TestLoopbackStopsNodePorts(t *testing.T) {
	run(t, func(b *bench) {
		b.state.Node.LocalhostNodePorts = true
		b.settled(row("dns", "node=0.0.0.0:30053 to=10.1.0.1:53"))
		b.kernel.Add(flow("127.0.0.1:30053", "10.1.0.1:53"), flow("127.0.0.1:30053", "127.0.0.1:30053"))
		n := nodeWith("192.168.0.0/16")
		n.LocalhostNodePorts = true
		b.applied(&proxy.Delta{Node: n})
		b.wantFlows(flow("127.0.0.1:30053", "127.0.0.1:30053"))
	})
}

// TestEndpointReturns checks that an endpoint that is removed and added again keeps its flows at a
// virtual address that has moved to another node.
func TestEndpointReturns(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "node=0.0.0.0:30053 to=10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{row("dns", "node=0.0.0.0:30053 to=10.1.0.2:53")})
		b.apply([]*proxy.ServicePort{row("dns", "node=0.0.0.0:30053 to=10.1.0.1:53")})
		right := flow("198.51.100.1:30053", "10.1.0.1:53")
		b.kernel.Add(right)
		b.settle()
		b.wantFlows(right)
		if n := len(b.rec.watch.departures); n > 0 {
			t.Errorf("%d departures are kept after the last look", n)
		}
	})
}

// TestRepair checks everything after a full sync without changes, because flows may have begun
// untranslated while our rules were missing.
func TestRepair(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		b.kernel.Add(flow("10.96.0.10:53", "10.96.0.10:53"), flow("10.96.0.99:53", "10.96.0.99:53"))
		b.apply(nil)
		b.wantFlows(flow("10.96.0.99:53", "10.96.0.99:53"))
		b.settle()
		if c := b.kernel.Reset(); c.Dumps != 2 {
			t.Errorf("%d dumps; want 2, one for an answer that may be under way", c.Dumps)
		}
	})
}

// TestLateFlow ends a flow that was created just after the rules changed.
func TestLateFlow(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53 to=10.1.0.2:53"))
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53")})
		synctest.Wait()
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.2:53"))
		b.settle()
		b.wantFlows()
		if c := b.kernel.Reset(); c.Dumps != 2 {
			t.Errorf("%d dumps; want 2", c.Dumps)
		}
	})
}

func reverse(f ct.Flow) ct.Flow {
	f.Orig, f.Reply = f.Reply, f.Orig
	return f
}

// TestLateReply ends a flow that begins with the reply to an ended flow, but not a similar one
// without such a past.
func TestLateReply(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		asked := flow("192.0.2.1:53", "192.0.2.1:53")
		other := asked
		other.Orig.Src = netip.MustParseAddrPort("203.0.113.10:4000")
		other.Reply.Dst = other.Orig.Src
		b.kernel.Add(asked, reverse(other))
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=10.1.0.1:53")})
		b.wantFlows(reverse(other))
		b.kernel.Add(reverse(asked))
		b.settle()
		b.wantFlows(reverse(other))
	})
}

// TestLateReplyAfterLastCheck checks for a late reply even if no frontend is watched any more, as
// after a repair, which is checked once. After that time the same flow is one that the server
// began.
func TestLateReplyAfterLastCheck(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "ext=192.0.2.1:53 to=10.1.0.1:53"))
		asked := flow("192.0.2.1:53", "192.0.2.1:53")
		b.kernel.Add(asked) // while our rules were away
		b.apply(nil)
		b.wantFlows()
		b.kernel.Add(reverse(asked))
		b.settle()
		b.wantFlows()
		if c := b.kernel.Reset(); c.Dumps != 2 {
			t.Errorf("%d dumps; want the repair's, and one for the answer", c.Dumps)
		}
		b.kernel.Add(reverse(asked))
		b.apply(nil)
		b.settle()
		b.wantFlows(reverse(asked))
	})
}

// TestServersFlowWhileChecksFail checks that a flow that a server begins is not taken for a late
// reply long after there can be one.
func TestServersFlowWhileChecksFail(t *testing.T) {
	run(t, func(b *bench) {
		busy, asked := flow("192.0.2.1:53", "10.1.0.66:53"), flow("192.0.2.1:53", "192.0.2.1:53")
		b.rec.settings.Flows = busyFlow{b.kernel, "10.1.0.66:53"}
		b.settled(row("dns", "ext=192.0.2.1:53 to=10.1.0.1:53"))
		b.kernel.Add(busy, asked)
		b.apply(nil)
		b.wantFlows(busy)
		time.Sleep(2 * retryMax)
		b.kernel.Add(reverse(asked))
		time.Sleep(2 * retryMax)
		b.wantFlows(busy, reverse(asked))
	})
}

// TestCost checks that changes that make no flow stale cause no dump.
func TestCost(t *testing.T) {
	const both = "cluster=10.96.0.10:53 to=10.1.0.1:53 to=10.1.0.2:53"
	tests := []struct {
		name  string
		apply func(*bench)
	}{
		{"another endpoint", func(b *bench) { b.apply([]*proxy.ServicePort{row("dns", both+" to=10.1.0.3:53")}) }},
		{"another order", func(b *bench) {
			b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.2:53 to=10.1.0.1:53")})
		}},
		{"TCP", func(b *bench) {
			b.apply([]*proxy.ServicePort{row("web", "tcp cluster=10.96.0.11:80 to=10.1.0.1:80")})
			b.apply(nil, row("web", "tcp cluster=10.96.0.11:80 to=10.1.0.1:80"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.settled(row("dns", both))
				tt.apply(b)
				b.settle()
				if c := b.kernel.Reset(); c.Dumps != 0 {
					t.Errorf("%d dumps; want none", c.Dumps)
				}
			})
		})
	}
}

// TestFailure checks that a failed pass is retried with back-off, and that nothing is lost.
func TestFailure(t *testing.T) {
	run(t, func(b *bench) {
		old := row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53")
		b.settled(old)
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		b.kernel.Fail(errors.New("out of order"))
		b.apply(nil, old)
		time.Sleep(time.Minute)
		synctest.Wait()
		b.wantFlows(flow("10.96.0.10:53", "10.1.0.1:53"))
		if c := b.kernel.Reset(); c.Dumps < 5 || c.Dumps > 15 {
			t.Errorf("%d dumps in a minute", c.Dumps)
		}
		if n := strings.Count(b.log(), "Stale flows may remain"); n < 5 || !strings.Contains(b.log(), "out of order") {
			t.Errorf("%d failures in the log:\n%s", n, b.log())
		}
		b.kernel.Fail(nil)
		time.Sleep(retryMax)
		b.wantFlows()
		b.settle()
		b.kernel.Reset()
		time.Sleep(time.Hour)
		if c := b.kernel.Reset(); c.Dumps != 0 {
			t.Errorf("%d dumps with nothing to do", c.Dumps)
		}
	})
}

// busyFlow refuses to delete the flows of an endpoint, as the kernel does with some that hardware
// forwards.
type busyFlow struct {
	ct.Interface
	endpoint string
}

func (k busyFlow) Delete(ctx context.Context, f *ct.Flow) error {
	if f.Reply.Src.String() == k.endpoint {
		return errors.New("device or resource busy")
	}
	return k.Interface.Delete(ctx, f)
}

// TestOneFlowFails checks that a flow that cannot be deleted does not delay those of another
// Service, neither existing nor late ones.
func TestOneFlowFails(t *testing.T) {
	run(t, func(b *bench) {
		busy := flow("10.96.0.66:53", "10.1.0.66:53")
		b.rec.settings.Flows = busyFlow{b.kernel, "10.1.0.66:53"}
		b.settled(row("busy", "cluster=10.96.0.66:53 to=10.1.0.66:53"), row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		b.kernel.Add(busy)
		b.apply([]*proxy.ServicePort{row("busy", "cluster=10.96.0.66:53 to=10.1.0.67:53")})
		time.Sleep(5*time.Minute + retryMax/3) // between two tries
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.2:53")})
		b.wantFlows(busy)
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		time.Sleep(watchTime)
		b.wantFlows(busy)
	})
}

// TestIncomplete checks that an incomplete dump ends the flows that were seen, and is repeated.
func TestIncomplete(t *testing.T) {
	run(t, func(b *bench) {
		old := row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53")
		b.settled(old)
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		b.kernel.Fail(fmt.Errorf("%w: for the test", ct.ErrIncomplete))
		b.apply(nil, old)
		b.wantFlows()
		b.kernel.Fail(nil)
		b.settle()
		if c := b.kernel.Reset(); c.Dumps < 2 {
			t.Errorf("%d dumps; want another", c.Dumps)
		}
	})
}

// TestPromptly checks that the flows of a removed endpoint end without delay.
func TestPromptly(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		start := time.Now()
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.2:53")})
		synctest.Wait()
		if n := len(b.kernel.Flows()); n != 0 || time.Since(start) != 0 {
			t.Errorf("%d flows after %v; want none at once", n, time.Since(start))
		}
	})
}

// TestStepDuringPass checks that a change during a pass is checked right after it.
func TestStepDuringPass(t *testing.T) {
	run(t, func(b *bench) {
		held := &heldFlows{Interface: b.kernel, begun: make(chan struct{}), release: make(chan struct{})}
		old := row("b", "cluster=10.96.0.2:53 to=10.1.0.1:53")
		b.settled(old)
		b.rec.settings.Flows = held
		b.kernel.Add(flow("10.96.0.2:53", "10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{row("a", "cluster=10.96.0.1:53 to=10.1.0.1:53")})
		<-held.begun
		b.apply(nil, old)
		close(held.release)
		synctest.Wait()
		if flows := b.kernel.Flows(); len(flows) != 0 {
			t.Errorf("flows %v are left at once; want none", flows)
		}
	})
}

// TestNeverWaits blocks a dump, and checks that the sync path does not wait and all its changes are
// checked together.
func TestNeverWaits(t *testing.T) {
	run(t, func(b *bench) {
		held := &heldFlows{Interface: b.kernel, begun: make(chan struct{}), release: make(chan struct{})}
		b.rec.settings.Flows = held
		b.apply([]*proxy.ServicePort{row("a", "cluster=10.96.0.1:53 to=10.1.0.1:53")})
		<-held.begun
		for i := range 100 {
			b.apply([]*proxy.ServicePort{row("b", fmt.Sprintf("cluster=10.96.0.2:53 to=10.1.0.%d:53", i))})
		}
		b.kernel.Add(flow("10.96.0.2:53", "10.1.0.1:53"))
		close(held.release)
		b.wantFlows()
		b.settle()
		if c := b.kernel.Reset(); c.Dumps > 4 {
			t.Errorf("%d dumps; want two for each change of which there were two", c.Dumps)
		}
	})
}

// heldFlows blocks dumps until it is released.
type heldFlows struct {
	ct.Interface
	begun, release chan struct{}
	once           bool
}

func (h *heldFlows) Dump(ctx context.Context, f ct.Filter, keep func(*ct.Flow) bool) ([]ct.Flow, error) {
	if !h.once {
		h.once = true
		close(h.begun)
	}
	<-h.release
	return h.Interface.Dump(ctx, f, keep)
}

// TestRest checks the rest between slow dumps.
func TestRest(t *testing.T) {
	run(t, func(b *bench) {
		slow := &slowFlows{Interface: b.kernel, takes: time.Second}
		b.rec.settings.Flows = slow
		for i := range 1000 {
			b.apply([]*proxy.ServicePort{row("dns", fmt.Sprintf("cluster=10.96.0.1:53 to=10.1.0.%d:53", i%9))})
			time.Sleep(100 * time.Millisecond)
		}
		if n := b.kernel.Reset().Dumps; n < 15 || n > 21 {
			t.Errorf("%d dumps of 1s in 100s of changes; want about a fifth of the time", n)
		}
		b.settle()
		b.settle()
	})
}

// TestRestIsBounded checks that a pass of ten seconds delays the next change by no more than
// maxRest.
func TestRestIsBounded(t *testing.T) {
	run(t, func(b *bench) {
		slow := &slowFlows{Interface: b.kernel, takes: 10 * time.Second}
		b.rec.settings.Flows = slow
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.1:53 to=10.1.0.1:53")})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		slow.takes = 0
		b.kernel.Add(flow("10.96.0.1:53", "10.1.0.1:53"))
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.1:53 to=10.1.0.2:53")})
		time.Sleep(maxRest)
		b.wantFlows()
	})
}

// TestNoRestForWaiting checks that the rest follows from the CPU time of a pass, not from the time
// it waited for a CPU.
func TestNoRestForWaiting(t *testing.T) {
	run(t, func(b *bench) {
		b.rec.settings.Flows = &slowFlows{Interface: b.kernel, takes: time.Second}
		spent := time.Duration(0)
		b.rec.settings.ThreadTime = func() time.Duration {
			spent += time.Millisecond
			return spent
		}
		for i := range 10 {
			b.apply([]*proxy.ServicePort{row("dns", fmt.Sprintf("cluster=10.96.0.1:53 to=10.1.0.%d:53", i))})
			b.kernel.Add(flow("10.96.0.1:53", fmt.Sprintf("10.1.0.%d:53", i)))
			time.Sleep(2100 * time.Millisecond) // a pass may have begun before, and ends first
			b.wantFlows(flow("10.96.0.1:53", fmt.Sprintf("10.1.0.%d:53", i)))
		}
		b.settle()
		b.settle()
	})
}

// slowFlows delays dumps.
type slowFlows struct {
	ct.Interface
	takes time.Duration
}

func (s *slowFlows) Dump(ctx context.Context, f ct.Filter, keep func(*ct.Flow) bool) ([]ct.Flow, error) {
	time.Sleep(s.takes)
	return s.Interface.Dump(ctx, f, keep)
}

// TestLog checks that the log names ended flows.
func TestLog(t *testing.T) {
	run(t, func(b *bench) {
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.9:53"))
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		for _, want := range []string{"Ended stale flows", "10.96.0.10:53, answered 10.1.0.9:53"} {
			if !strings.Contains(b.log(), want) {
				t.Errorf("%q is not in the log:\n%s", want, b.log())
			}
		}
	})
}
