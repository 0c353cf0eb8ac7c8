package explain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// patience is how long a sync may take.
const patience = 20 * time.Second

// nodePlane is the nftables dataplane of the lab's node. It does not watch the
// kernel, so that changes by other processes stay.
type nodePlane struct {
	*nftables.Dataplane
	node *lab.Host
	fail atomic.Bool
	runs atomic.Int64
}

func (p *nodePlane) in(f func() (proxy.Refused, error)) (r proxy.Refused, err error) {
	defer p.runs.Add(1)
	if p.fail.Load() {
		return nil, errors.New("not now")
	}
	return r, errors.Join(p.node.Do(func() error { r, err = f(); return err }))
}

func (p *nodePlane) Sync(ctx context.Context, s *proxy.State) (proxy.Refused, error) {
	return p.in(func() (proxy.Refused, error) { return p.Dataplane.Sync(ctx, s) })
}

func (p *nodePlane) Apply(ctx context.Context, s *proxy.State, c *proxy.Changed) (proxy.Refused, error) {
	return p.in(func() (proxy.Refused, error) { return p.Dataplane.Apply(ctx, s, c) })
}

// Watch hides the dataplane's method: with another signature, nodePlane is no
// proxy.Watcher.
func (p *nodePlane) Watch() {}

// story is a node with real rules, a client pod and two server pods.
type story struct {
	t      *testing.T
	lab    *lab.Lab
	client *lab.Host
	plane  *nodePlane
	engine *engine.Engine
}

var storyClient = netip.MustParseAddr("10.0.0.9")

func newStory(t *testing.T) *story {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	s := &story{t: t, lab: l, plane: &nodePlane{node: l.Node()}}
	for _, ip := range []string{"10.0.0.11", "10.0.0.12"} {
		a := netip.MustParseAddr(ip)
		h, err := l.AddPod("pod", a)
		must(t, err)
		ln, err := h.Listen(proxy.TCP, netip.AddrPortFrom(a, 8080))
		must(t, err)
		t.Cleanup(func() { _ = ln.Close() })
	}
	s.client, err = l.AddPod("client", storyClient)
	must(t, err)
	must(t, l.Node().Do(func() (err error) {
		s.plane.Dataplane, err = nftables.Alone.Open(t.Context(), mode.Settings{MasqueradeBit: 14})
		return err
	}))
	s.engine = engine.New(engine.Settings{Dataplane: s.plane, Observer: silent{}, Resolver: resolve.New(resolve.Settings{
		NodeName: "here", LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	})})
	return s
}

// start runs the engine with two Services: web, with one endpoint, and huge, with
// more endpoints than nf_tables accepts.
func (s *story) start() {
	s.t.Helper()
	s.engine.OnServiceUpdate(nil, serviceOf("web", "172.30.0.1"))
	s.engine.OnEndpointSliceUpdate(nil, sliceOf("web", "10.0.0.11"))
	huge := serviceOf("huge", "172.30.0.2")
	huge.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.engine.OnServiceUpdate(nil, huge)
	var many []string
	for i := range 9000 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/200, i%200+1))
	}
	s.engine.OnEndpointSliceUpdate(nil, sliceOf("huge", many...))
	s.engine.OnServiceCIDRUpdate(nil, cidrOf("172.30.0.0/16"))
	ctx, stop := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.engine.SyncLoop(ctx) }()
	s.t.Cleanup(func() { stop(); must(s.t, <-done); must(s.t, s.plane.Close()) })
	s.after(func() {
		s.engine.OnNodeSynced()
		s.engine.OnServiceSynced()
		s.engine.OnEndpointSlicesSynced()
	})
}

// after calls do and waits for the next sync.
func (s *story) after(do func()) {
	s.t.Helper()
	before := s.plane.runs.Load()
	do()
	for end := time.Now().Add(patience); s.plane.runs.Load() == before || s.pending(); {
		if time.Now().After(end) {
			s.t.Fatal("no sync")
		}
		<-time.After(time.Millisecond)
	}
}

// pending reports whether a sync is pending.
func (s *story) pending() (pending bool) {
	s.engine.Look(func(v engine.View) {
		n, _ := v.DirtyCounts()
		pending = !v.Sync.First || n > 0 && !s.plane.fail.Load()
	})
	return pending
}

// want explains a packet of the client and sends it. Both must have the same result.
func (s *story) want(to string, reason statusapi.Reason, fate traffic.Fate, by string) *statusapi.Explanation {
	s.t.Helper()
	e := s.explain(to)
	if e.Reason != reason {
		s.t.Errorf("%s: %s, %s; want %s", to, e.Reason, e.Message, reason)
	}
	seen := s.probe(e.Packet.To)
	if seen.Fate != fate || by != "" && seen.By.String() != by {
		s.t.Errorf("%s: %v; want %v by %s", to, seen, fate, by)
	}
	says := map[string]traffic.Fate{"forward": traffic.Answered, "reject": traffic.Refused, "drop": traffic.Silent, "untouched": traffic.Reset}[e.Verdict]
	if says != seen.Fate && len(e.Kernel.Differences) == 0 {
		s.t.Errorf("%s: explained as %s, but the packet saw %v", to, e.Verdict, seen)
	}
	if e.Verdict == "forward" && seen.Fate == traffic.Answered && (len(e.Candidates) != 1 || e.Candidates[0].Address != seen.By.String()) {
		s.t.Errorf("%s: explained as %+v, but answered by %v", to, e.Candidates, seen.By)
	}
	return e
}

// probe sends a packet of the client.
func (s *story) probe(to string) traffic.Seen {
	s.t.Helper()
	seen, err := s.client.Probe(s.t.Context(), []traffic.Flow{{
		Protocol: proxy.TCP, Src: storyClient, Dst: netip.MustParseAddrPort(to), Patience: traffic.Scaled(500 * time.Millisecond),
	}})
	must(s.t, err)
	return seen[0]
}

func (s *story) explain(to string) *statusapi.Explanation {
	s.t.Helper()
	var a *Answer
	var err error
	s.engine.Look(func(v engine.View) {
		w := World{Resolver: v.Resolver, View: &v, Unserved: []Unserved{{
			Name: types.NamespacedName{Namespace: "ns", Name: "alien"}, Why: statusapi.OtherProxy, Detail: "its label says so",
			Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.77")},
		}}}
		a, err = w.Explain(Question{To: to, From: storyClient.String(), In: lab.Bridge})
	})
	must(s.t, err)
	if what, ok := a.Inspection(); ok {
		a.Compare(s.engine.Inspect(s.t.Context(), what))
	}
	return a.Explanation
}

func serviceOf(name, ip string) *v1.Service {
	s := &v1.Service{Spec: v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Port: 80}}}}
	s.Namespace, s.Name = "ns", name
	return s
}

func cidrOf(cidr string) *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
	c.Name = "c"
	return c
}

func sliceOf(service string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080)), Name: new("")}}}
	s.Namespace, s.Name, s.Labels = "ns", service, map[string]string{discoveryv1.LabelServiceName: service}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: new("here")})
	}
	return s
}

// TestExplainOnKernel checks the reasons for which the kernel differs from the wanted
// state; the packet table checks the reasons of policy.
func TestExplainOnKernel(t *testing.T) {
	s := newStory(t)
	s.want("172.30.0.1:80", statusapi.NotSynced, traffic.Reset, "") // The kernel has no rules yet.
	s.start()
	e := s.want("172.30.0.1:80", statusapi.Forwarded, traffic.Answered, "10.0.0.11:8080")
	if e.Kernel.State != statusapi.KernelAgrees || e.Kernel.Objects < 20 || !e.Fine() {
		t.Errorf("kernel %+v", e.Kernel)
	}
	s.want("172.30.0.2:80", statusapi.RefusedByKernel, traffic.Silent, "")
	s.want("172.30.0.77:80", statusapi.OtherProxy, traffic.Silent, "")

	s.plane.fail.Store(true)
	s.after(func() { s.engine.OnEndpointSliceUpdate(nil, sliceOf("web", "10.0.0.12")) })
	s.want("172.30.0.1:80", statusapi.NotSynced, traffic.Answered, "10.0.0.11:8080")
	s.after(func() { s.plane.fail.Store(false) })
	s.want("172.30.0.1:80", statusapi.Forwarded, traffic.Answered, "10.0.0.12:8080")

	sticky := serviceOf("sticky", "172.30.0.3")
	sticky.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.after(func() {
		s.engine.OnServiceUpdate(nil, sticky)
		s.engine.OnEndpointSliceUpdate(nil, sliceOf("sticky", "10.0.0.11", "10.0.0.12"))
	})
	if e := s.explain("ns/sticky"); e.Affinity == nil || e.Affinity.Endpoint != "" || e.Affinity.Unknown != "" {
		t.Errorf("a client that never connected: %+v", e.Affinity)
	}
	first := s.probe("172.30.0.3:80")
	if e := s.explain("ns/sticky"); e.Affinity.Endpoint != first.By.String() {
		t.Errorf("a client that was answered by %v: %+v", first.By, e.Affinity)
	}

	must(t, s.lab.Node().Do(func() error {
		out, err := exec.Command("nft", "flush", "map", "ip", "sluice", "endpoints").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	e = s.explain("172.30.0.1:80")
	if e.Kernel.State != statusapi.KernelDiffers || e.Fine() || len(e.Kernel.Differences) != 1 || !strings.Contains(e.Kernel.Differences[0].Want, "10.0.0.12 . 8080") {
		t.Errorf("a slot that was deleted: %+v", e.Kernel)
	}
	if seen := s.probe("172.30.0.1:80"); seen.Fate == traffic.Answered {
		t.Errorf("without the slot: %v", seen)
	}
}
