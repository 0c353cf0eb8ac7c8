package explain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"sluice/internal/apiobject"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// objects are a small cluster in which most things that can go wrong do so once.
const objects = `
{kind: Node, metadata: {name: here}, status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}}
---
{kind: ServiceCIDR, metadata: {name: c}, spec: {cidrs: [10.96.0.0/16]}}
---
kind: Service
metadata: {namespace: ns, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.1, externalTrafficPolicy: Local, externalIPs: [198.51.100.1], sessionAffinity: ClientIP, ports: [{name: http, port: 80, nodePort: 30080}]}
---
kind: EndpointSlice
metadata: {namespace: ns, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], nodeName: here}
- {addresses: [10.1.1.1], nodeName: there}
- {addresses: [10.1.1.2], nodeName: there, conditions: {ready: false}}
---
kind: Service
metadata: {namespace: ns, name: dns}
spec: {clusterIP: 10.96.0.53, ports: [{name: dns, protocol: UDP, port: 53}, {name: tcp, port: 53}, {name: metrics, port: 9153}]}
---
kind: Service
metadata: {namespace: ns, name: xweb}
spec: {clusterIP: 10.96.0.9, externalIPs: [198.51.100.1], ports: [{name: http, port: 80}]}
---
{kind: Service, metadata: {namespace: ns, name: unborn}, spec: {ports: [{port: 80}]}}
`

// resolverOf returns a resolver that has received objects and not yet resolved them.
func resolverOf(t *testing.T, text string) *resolve.Resolver {
	t.Helper()
	r := resolve.New(resolve.Settings{
		NodeName: "here", LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		NodePortAddresses: resolve.NodePortAddresses{Primary: true},
	})
	for _, doc := range strings.Split(text, "---") {
		var kind struct{ Kind string }
		must(t, yaml.Unmarshal([]byte(doc), &kind))
		switch kind.Kind {
		case "Node":
			o := &v1.Node{}
			must(t, yaml.UnmarshalStrict([]byte(doc), o))
			r.UpdateNode(o)
		case "Service":
			o := &v1.Service{}
			must(t, yaml.UnmarshalStrict([]byte(doc), o))
			r.Services.Update(nil, o)
		case "EndpointSlice":
			o := &discoveryv1.EndpointSlice{}
			must(t, yaml.UnmarshalStrict([]byte(doc), o))
			r.Endpoints.Update(o, false)
		case "ServiceCIDR":
			o := &networkingv1.ServiceCIDR{}
			must(t, yaml.UnmarshalStrict([]byte(doc), o))
			r.UpdateServiceCIDR(nil, o)
		default:
			t.Fatalf("object %s", doc)
		}
	}
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func worldOf(t *testing.T) *World {
	t.Helper()
	r := resolverOf(t, objects)
	r.Update()
	return &World{Resolver: r, Unserved: []Unserved{
		{types.NamespacedName{Namespace: "ns", Name: "db"}, statusapi.Headless, "it is headless", nil},
		{types.NamespacedName{Namespace: "ns", Name: "alien"}, statusapi.OtherProxy, "its label names proxy x", []netip.Addr{netip.MustParseAddr("10.96.0.77")}},
	}}
}

// TestExplainQuestions checks targets in every form.
func TestExplainQuestions(t *testing.T) {
	w := worldOf(t)
	tests := []struct {
		q       Question
		to      string
		reason  statusapi.Reason
		verdict string
		note    string
	}{
		{Question{To: "10.96.0.1:80"}, "10.96.0.1:80", statusapi.Forwarded, "forward", ""},
		{Question{To: "[::ffff:10.96.0.1]:80", From: "::ffff:10.1.0.7"}, "10.96.0.1:80", statusapi.Forwarded, "forward", ""},
		{Question{To: "ns/web"}, "10.96.0.1:80", statusapi.Forwarded, "forward", ""},
		{Question{To: "ns/web:http", Protocol: "TCP"}, "10.96.0.1:80", statusapi.Forwarded, "forward", ""},
		{Question{To: "ns/dns:53"}, "10.96.0.53:53", statusapi.NoEndpoints, "reject", ""},
		{Question{To: "ns/dns:53", Protocol: "tcp"}, "10.96.0.53:53", statusapi.NoEndpoints, "reject", ""},
		{Question{To: "ns/dns:metrics"}, "10.96.0.53:9153", statusapi.NoEndpoints, "reject", ""},
		{Question{To: "ns/db"}, "", statusapi.Headless, "untouched", ""},
		{Question{To: "ns/unborn"}, "", statusapi.Headless, "untouched", ""},
		{Question{To: "ns/alien"}, "", statusapi.OtherProxy, "untouched", ""},
		{Question{To: "10.96.0.77:80"}, "10.96.0.77:80", statusapi.OtherProxy, "drop", ""},
		{Question{To: "198.51.100.1:81"}, "198.51.100.1:81", statusapi.NoSuchFrontend, "untouched", "198.51.100.1 is an address of Service ns/web, which has http (80/TCP)"},
		{Question{To: "192.168.0.3:30080"}, "192.168.0.3:30080", statusapi.NoSuchFrontend, "untouched", "30080 is a NodePort of Service ns/web, but 192.168.0.3 is not known as an address of this node"},
		{Question{To: "198.51.100.1:80", From: "203.0.113.9"}, "198.51.100.1:80", statusapi.Forwarded, "forward", "Service ns/xweb claims it too, but the claim of ns/web has priority"},
		{Question{To: "ns/xweb"}, "10.96.0.9:80", statusapi.NoEndpoints, "reject", "its ExternalIP 198.51.100.1:80 belongs to Service ns/web, whose claim to it has priority"},
	}
	for _, tt := range tests {
		t.Run(tt.q.To, func(t *testing.T) {
			got, err := w.Explain(tt.q)
			if err != nil {
				t.Fatal(err)
			}
			e := got.Explanation
			if e.Packet.To != tt.to || e.Reason != tt.reason || e.Verdict != tt.verdict {
				t.Errorf("%s: %s %s (%s); want %s: %s %s", e.Packet.To, e.Verdict, e.Reason, e.Message, tt.to, tt.verdict, tt.reason)
			}
			if tt.note != "" && !slices.Contains(e.Notes, tt.note) || tt.note == "" && e.Notes != nil {
				t.Errorf("notes %q, want %q", e.Notes, tt.note)
			}
			if (len(e.Try) == 0) != e.Fine() || e.Message == "" {
				t.Errorf("%s: fine %t, message %q, try %q", e.Reason, e.Fine(), e.Message, e.Try)
			}
		})
	}
}

// TestExplainBadQuestions checks that an error says in one line what to write instead.
func TestExplainBadQuestions(t *testing.T) {
	w := worldOf(t)
	tests := []struct {
		q    Question
		want string
	}{
		{Question{To: "web"}, `"web" is not ADDR:PORT (10.96.0.10:80, [fd00::10]:80) or NAMESPACE/SERVICE[:PORT]`},
		{Question{To: "10.96.0.1"}, `"10.96.0.1" is not ADDR:PORT`},
		{Question{To: "10.96.0.1:0"}, `"10.96.0.1:0" is not ADDR:PORT`},
		{Question{To: "a/b/c"}, `"a/b/c" is not NAMESPACE/SERVICE[:PORT]`},
		{Question{To: "/web"}, `"/web" is not NAMESPACE/SERVICE[:PORT]`},
		{Question{To: "ns/we"}, `no Service ns/we; there is ns/web`},
		{Question{To: "ns/wbe"}, `no Service ns/wbe; there is ns/web`},
		{Question{To: "ns/xwebs"}, `no Service ns/xwebs; there is ns/xweb`},
		{Question{To: "prod/web"}, `no Service prod/web; there is ns/web`},
		{Question{To: "ns/nothing"}, `no Service ns/nothing`},
		{Question{To: "ns/web:81"}, `no port 81 of Service ns/web: it has http (80/TCP)`},
		{Question{To: "ns/web", Protocol: "udp"}, `no port UDP of Service ns/web: it has http (80/TCP)`},
		{Question{To: "ns/dns"}, `which port of Service ns/dns? Write ns/dns:PORT; it has dns (53/UDP), tcp (53/TCP), metrics (9153/TCP)`},
		{Question{To: "ns/web", From: "fd00::1"}, `the client fd00::1 is IPv6, and Service ns/web has no address of that family`},
		{Question{To: "10.96.0.1:80", From: "fd00::1"}, `the client fd00::1 is IPv6 and 10.96.0.1:80 is IPv4`},
		{Question{To: "10.96.0.1:80", From: "pod"}, `the client "pod" is not an IP address`},
		{Question{To: "10.96.0.1:80", Protocol: "icmp"}, `protocol "icmp" is not tcp, udp or sctp`},
	}
	for _, tt := range tests {
		if got, err := w.Explain(tt.q); err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, error %v; want %s", tt.q, got, err, tt.want)
		}
	}
	w.Unserved = nil
	if _, err := w.Explain(Question{To: "ns/nothing"}); err == nil || !strings.Contains(err.Error(), "kubectl -n ns get service nothing") {
		t.Errorf("of a daemon: %v", err)
	}
}

// TestExplainEndpoints checks that each endpoint is listed once: with its share, or
// with the reason why it is not used.
func TestExplainEndpoints(t *testing.T) {
	got, err := worldOf(t).Explain(Question{To: "192.168.0.2:30080", From: "203.0.113.9"})
	must(t, err)
	e := got.Explanation
	if e.Scope != "Local" || len(e.Candidates) != 1 || e.Candidates[0] != (statusapi.Candidate{Address: "10.1.0.1:8080", Share: 1, Local: true}) {
		t.Errorf("%s candidates %+v", e.Scope, e.Candidates)
	}
	var not []string
	for _, n := range e.NotUsed {
		not = append(not, n.Address+" "+n.Reason)
	}
	if want := []string{"10.1.1.1:8080 on another node", "10.1.1.2:8080 on another node"}; !slices.Equal(not, want) || e.NotUsedCount != 2 {
		t.Errorf("not used %q, want %q", not, want)
	}
	if e.Packet.Origin != "elsewhere" || !e.Packet.ToNode || e.Frontend.Kind != "NodePort" || e.Affinity.Seconds != 10800 || e.Masquerade != "externalTrafficPolicy Local keeps it" {
		t.Errorf("%+v, frontend %+v, affinity %+v, masquerade %q", e.Packet, e.Frontend, e.Affinity, e.Masquerade)
	}
	got, err = worldOf(t).Explain(Question{To: "ns/web", From: "10.1.0.1"})
	must(t, err)
	if c := got.Candidates; len(c) != 2 || c[0].Share != 0.5 || !c[0].Hairpin || !c[0].Masquerade || c[1].Masquerade {
		t.Errorf("a pod to itself: %+v", c)
	}
}

// TestExplainLocalPolicy checks that the advice is about the policy that applies: no load
// balancer is in front of a ClusterIP.
func TestExplainLocalPolicy(t *testing.T) {
	r := resolverOf(t, `
kind: Service
metadata: {namespace: ns, name: far}
spec: {clusterIP: 10.96.0.1, externalIPs: [198.51.100.1], internalTrafficPolicy: Local, externalTrafficPolicy: Local, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {namespace: ns, name: far-1, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: "", port: 80}]
endpoints: [{addresses: [10.1.1.1], nodeName: there}]
`)
	r.Update()
	for q, want := range map[Question][2]string{
		{To: "10.96.0.1:80", From: "10.1.0.7"}:       {"spec.internalTrafficPolicy to Cluster", "DaemonSet"},
		{To: "198.51.100.1:80", From: "203.0.113.9"}: {"spec.externalTrafficPolicy to Cluster", "load balancer"},
	} {
		a, err := (&World{Resolver: r}).Explain(q)
		must(t, err)
		if a.Reason != statusapi.NoLocalEndpoint || len(a.Try) != 2 || !strings.Contains(a.Try[0], want[0]) || !strings.Contains(a.Try[1], want[1]) {
			t.Errorf("%s: %s, try %q; want %q", q.To, a.Reason, a.Try, want)
		}
	}
}

// TestExplainOtherNodesPod checks that the answer about a pod of another node says that
// the other node decides, unless the packet is for an address of this node.
func TestExplainOtherNodesPod(t *testing.T) {
	w := worldOf(t)
	w.Resolver.UpdateNode(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "here"},
		Spec:       v1.NodeSpec{PodCIDRs: []string{"fd00:1::/64", "10.1.0.0/24"}},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.168.0.2"}}},
	})
	w.Resolver.Update()
	const known, likely = "the client is on another node, as EndpointSlices say", "the client is not within 10.1.0.0/24, this node's pod range"
	for _, tt := range []struct{ from, to, in, note string }{
		{"10.1.1.1", "ns/web", "", known},
		{"10.1.1.7", "ns/web", "", likely},
		{"10.1.1.7", "ns/web", "cali0", ""},           // so it is here
		{"10.1.0.1", "ns/web", "", ""},                // an endpoint on this node
		{"10.1.0.7", "ns/web", "", ""},                // within the node's range
		{"203.0.113.9", "ns/web", "", ""},             // no pod
		{"10.1.1.1", "192.168.0.2:30080", "eth0", ""}, // it gets here
		{"192.168.0.2", "ns/web", "", ""},             // the node itself
	} {
		a, err := w.Explain(Question{To: tt.to, From: tt.from, In: tt.in})
		must(t, err)
		about := slices.DeleteFunc(a.Notes, func(n string) bool { return !strings.HasPrefix(n, "the client is ") })
		if tt.note == "" && len(about)+len(a.Try) != 0 || tt.note != "" && (len(about) != 1 || !strings.HasPrefix(about[0], tt.note) ||
			!slices.Contains(a.Try, "kubectl get pods -A -o wide --field-selector status.podIP="+tt.from)) {
			t.Errorf("from %s to %s: notes %q, try %q; want %q", tt.from, tt.to, a.Notes, a.Try, tt.note)
		}
	}
}

// TestExplainOutdatedNode checks that the node's addresses come from the kernel and
// not from the Node object, as they do in the rules for NodePorts.
func TestExplainOutdatedNode(t *testing.T) {
	w := worldOf(t)
	w.Local = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.77") }
	a, err := w.Explain(Question{To: "192.168.0.2:30080"})
	must(t, err)
	const note = "30080 is a NodePort of Service ns/web, but 192.168.0.2 is not known as an address of this node, " +
		"although its Node object has it: is the object outdated, or --hostname-override wrong?"
	if a.Verdict != "untouched" || a.Reason != statusapi.NoSuchFrontend || !slices.Equal(a.Notes, []string{note}) {
		t.Errorf("%s %s, notes %q", a.Verdict, a.Reason, a.Notes)
	}
	if a.Explanation.Packet.From != "" || a.Explanation.Packet.Origin != "this node" {
		t.Errorf("the client is %+v", a.Explanation.Packet)
	}
	a, err = w.Explain(Question{To: "10.0.0.77:30080", From: "192.168.0.2"})
	must(t, err)
	if a.Reason != statusapi.NodePortClosedHere || a.Explanation.Packet.Origin != "elsewhere" {
		t.Errorf("%s, %+v", a.Reason, a.Explanation.Packet)
	}
}

// TestExplainRelayed asks about NodePorts at ::1, which rules leave alone.
func TestExplainRelayed(t *testing.T) {
	for _, tt := range []struct {
		relay  bool
		to     string
		reason statusapi.Reason
	}{
		{true, "[::1]:30080", statusapi.RelayedByDaemon},
		{true, "[::1]:30081", statusapi.PortNameMismatch},
		{false, "[::1]:30080", statusapi.NodePortClosedHere},
	} {
		r := resolve.New(resolve.Settings{
			NodeName: "here", RelayLoopback: tt.relay,
			NodePortAddresses: resolve.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("::1/128")}},
		})
		port := v1.ServicePort{Name: "http", Port: 80, NodePort: 30080}
		r.Services.Update(nil, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "six"},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "fd00::5", Ports: []v1.ServicePort{
				port, {Name: "none", Port: 81, NodePort: 30081},
			}},
		})
		r.Endpoints.Update(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "six-1", Labels: map[string]string{discoveryv1.LabelServiceName: "six"}},
			AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00:1::1"}}},
			Ports: []discoveryv1.EndpointPort{{Name: &port.Name, Port: &port.Port}},
		}, false)
		r.Update()
		a, err := (&World{Resolver: r}).Explain(Question{To: tt.to})
		must(t, err)
		if a.Reason != tt.reason || a.Verdict != "untouched" {
			t.Errorf("%+v: %s %s", tt, a.Verdict, a.Reason)
		}
	}
}

// TestExplainFamilyNotServed checks that no answer denies that other nodes serve an
// address of a family that this node does not serve.
func TestExplainFamilyNotServed(t *testing.T) {
	only4 := []proxy.Family{proxy.IPv4}
	r := resolve.New(resolve.Settings{Families: only4})
	name := types.NamespacedName{Namespace: "ns", Name: "six"}
	r.Services.Update(nil, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec:       v1.ServiceSpec{ClusterIP: "fd00::5", Ports: []v1.ServicePort{{Port: 80}}},
	})
	r.Update()
	listed := []Unserved{{Name: name, Why: statusapi.FamilyNotServed, Detail: "its address is IPv6"}}
	for _, tt := range []struct {
		to     string
		others []Unserved
		reason statusapi.Reason
		says   string
	}{
		{"[fd00::5]:80", nil, statusapi.FamilyNotServed, "This node does not serve IPv6, whether or not a Service has [fd00::5]:80. Ordinary routing applies."},
		{"ns/six", listed, statusapi.FamilyNotServed, "Service ns/six is not served here: its address is IPv6."},
		{"ns/six", nil, statusapi.Headless, "Service ns/six is not served here: it has no ports, or no address of a family that this node serves."},
	} {
		w := World{Resolver: r, Families: only4, Unserved: tt.others}
		a, err := w.Explain(Question{To: tt.to})
		must(t, err)
		if a.Verdict != "untouched" || a.Reason != tt.reason || a.Message != tt.says || len(a.Try) == 0 {
			t.Errorf("%s: %s %s, %s, try %q", tt.to, a.Verdict, a.Reason, a.Message, a.Try)
		}
		if a.NoServiceFound() != (a.Reason == statusapi.Headless) {
			t.Errorf("%s: address of no Service: %t", tt.to, a.NoServiceFound())
		}
	}
}

// TestExplainUnusable checks that readiness is the reason only if endpoints are not
// used because of it.
func TestExplainUnusable(t *testing.T) {
	const loop = `
{kind: Service, metadata: {namespace: ns, name: loop}, spec: {clusterIP: 10.96.0.5, ports: [{port: 80}]}}
---
kind: EndpointSlice
metadata: {namespace: ns, name: loop-1, labels: {kubernetes.io/service-name: loop}}
addressType: IPv4
ports: [{name: "", port: 80}]
endpoints: [{addresses: [10.96.0.5]}%s]
`
	for others, want := range map[string]statusapi.Reason{
		"": statusapi.NoEndpoints, ", {addresses: [10.1.0.1], conditions: {ready: false}}": statusapi.NotReady,
	} {
		r := resolverOf(t, fmt.Sprintf(loop, others))
		r.Update()
		a, err := (&World{Resolver: r}).Explain(Question{To: "ns/loop"})
		must(t, err)
		if a.Reason != want || others == "" && !strings.Contains(a.Message, "1 endpoint, and none can be used (10.96.0.5: it is the Service's own ClusterIP)") {
			t.Errorf("with %q: %s, %s", others, a.Reason, a.Message)
		}
	}
}

// TestExplainProtocols checks that without a protocol the TCP port of a number is
// used, wherever the Service lists it, as the help says.
func TestExplainProtocols(t *testing.T) {
	w := worldOf(t)
	for q, want := range map[Question]string{
		{To: "ns/dns:53"}: "TCP", {To: "ns/dns:53", Protocol: "udp"}: "UDP", {To: "ns/dns:dns"}: "UDP", {To: "ns/dns", Protocol: "udp"}: "UDP",
	} {
		a, err := w.Explain(q)
		must(t, err)
		if got := a.Explanation.Packet.Protocol; got != want {
			t.Errorf("%+v: %s, want %s", q, got, want)
		}
	}
}

// TestExplainManyEndpoints checks that a long list is cut but still has the client
// itself, the only endpoint for which the client is masqueraded.
func TestExplainManyEndpoints(t *testing.T) {
	var endpoints strings.Builder
	for i := range 2 * maxListed {
		fmt.Fprintf(&endpoints, "{addresses: [10.1.%d.%d], nodeName: here}, ", i/200, i%200+1)
	}
	r := resolverOf(t, fmt.Sprintf(`
{kind: Service, metadata: {namespace: ns, name: big}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
---
{kind: EndpointSlice, metadata: {namespace: ns, name: big-1, labels: {kubernetes.io/service-name: big}}, addressType: IPv4, ports: [{name: "", port: 80}], endpoints: [%s]}
`, endpoints.String()))
	r.Update()
	w := &World{Resolver: r}
	for i := 0; i < 2*maxListed; i += 15 {
		a, err := w.Explain(Question{To: "ns/big", From: fmt.Sprintf("10.1.%d.%d", i/200, i%200+1)})
		must(t, err)
		hidden := slices.DeleteFunc(slices.Clone(a.Candidates), func(c statusapi.Candidate) bool { return !c.Masquerade })
		if len(hidden) != 1 || !hidden[0].Hairpin || len(a.Candidates) > maxListed+1 || a.CandidateCount != 2*maxListed {
			t.Fatalf("endpoint %d: hidden from %+v, %d of %d candidates", i, hidden, len(a.Candidates), a.CandidateCount)
		}
	}
}

// TestReasonsAreDocumented checks that the documentation has every reason.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/explain.md")
	must(t, err)
	for _, r := range statusapi.Reasons {
		if !strings.Contains(string(text), "| `"+string(r)+"` |") {
			t.Errorf("docs/explain.md does not say what to do about %s", r)
		}
	}
}

// kernel is a dataplane that refuses rows or fails.
type kernel struct {
	refuse string // the name of the Services to refuse
	fail   atomic.Bool
}

func (k *kernel) refused(s *proxy.State) (proxy.Refused, error) {
	if k.fail.Load() {
		return nil, errors.New("no kernel")
	}
	r := proxy.Refused{}
	for key := range s.Rows {
		if key.Name == k.refuse {
			r[key] = errors.New("set is full")
		}
	}
	return r, nil
}

func (k *kernel) Sync(_ context.Context, s *proxy.State) (proxy.Refused, error) { return k.refused(s) }

func (k *kernel) Apply(_ context.Context, s *proxy.State, _ *proxy.Changed) (proxy.Refused, error) {
	return k.refused(s)
}

func (k *kernel) Close() error { return nil }

// silent is an observer that does nothing.
type silent struct{}

func (silent) Queued()                                                  {}
func (silent) ServiceSeen(int)                                          {}
func (silent) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (silent) NodeSeen(*v1.Node)                                        {}
func (silent) Repairing()                                               {}
func (silent) Began(*proxy.Delta)                                       {}
func (silent) Done(context.Context, engine.Result)                      {}

// TestExplainKernel checks the answer while the kernel does not have the wanted
// state: it says so, and has the verdict in force.
func TestExplainKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{refuse: "web"}
		e := engine.New(engine.Settings{Dataplane: k, Resolver: resolverOf(t, objects), Observer: silent{}})
		ask := func(to string) (got statusapi.Explanation) {
			t.Helper()
			e.Look(func(v engine.View) {
				w := World{Resolver: v.Resolver, View: &v}
				a, err := w.Explain(Question{To: to, From: "10.1.0.7"})
				must(t, err)
				got = *a.Explanation
			})
			return got
		}
		for _, to := range []string{"10.96.0.1:80", "198.51.100.1:80", "ns/nobody-knows"} {
			got := ask(to)
			if got.Reason != statusapi.NotSynced || got.Verdict != "unknown" || !strings.Contains(got.Message, "Services are not known yet") ||
				len(got.Doubts) != 1 || got.Doubts[0].Kind != "NotSynced" || len(got.Candidates) > 0 {
				t.Errorf("before the first sync: %s: %+v", to, got)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.SyncLoop(ctx) }()
		e.OnServiceSynced()
		e.OnEndpointSlicesSynced()
		e.OnNodeSynced()
		synctest.Wait()
		if got := ask("10.96.0.1:80"); got.Reason != statusapi.RefusedByKernel || got.Verdict != "drop" || !strings.Contains(got.Message, "set is full") ||
			got.Service.Status.State != statusapi.Refused {
			t.Errorf("a refused row: %s %s, %s", got.Verdict, got.Reason, got.Message)
		}
		if got := ask("ns/dns:53"); got.Reason != statusapi.NoEndpoints || got.Service.Status.State != statusapi.InForce {
			t.Errorf("a row that is not refused: %s %s", got.Verdict, got.Reason)
		}
		endpoint := func(ip string) {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "dns-1", Labels: map[string]string{discoveryv1.LabelServiceName: "dns"}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("metrics"), Port: new(int32(9153))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
			}
			e.OnEndpointSliceUpdate(nil, slice)
			synctest.Wait()
		}
		goesTo := func(ip string, reason statusapi.Reason) {
			t.Helper()
			if got := ask("ns/dns:metrics"); got.Reason != reason || got.Verdict != "forward" || len(got.Candidates) != 1 || got.Candidates[0].Address != ip+":9153" {
				t.Errorf("%s %s, candidates %+v; want %s, %s", got.Verdict, got.Reason, got.Candidates, reason, ip)
			}
		}
		endpoint("10.1.0.1")
		goesTo("10.1.0.1", statusapi.Forwarded)
		k.fail.Store(true)
		endpoint("10.1.0.2")
		goesTo("10.1.0.1", statusapi.NotSynced)
		k.fail.Store(false)
		time.Sleep(time.Hour) // It is tried again.
		goesTo("10.1.0.2", statusapi.Forwarded)
		k.fail.Store(true)
		old := &v1.Service{}
		old.Namespace, old.Name = "ns", "dns"
		e.OnServiceUpdate(old, nil)
		synctest.Wait()
		if got := ask("10.96.0.53:53"); got.Reason != statusapi.NotSynced || got.Verdict != "reject" {
			t.Errorf("a row whose removal failed: %s %s", got.Verdict, got.Reason)
		}
		stop()
		must(t, <-done)
	})
}

// TestCompare checks what is read back from the kernel, and how the answer has it.
func TestCompare(t *testing.T) {
	client, endpoint := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddrPort("10.1.0.1:8080")
	gone := proxy.Difference{Object: "element of map endpoints", Want: "10.1.0.1 . 8080"}
	failed, unread := errors.New("no netlink"), statusapi.Affinity{Unknown: "the kernel was not read"}
	for _, tt := range []struct {
		is       proxy.Inspected
		err      error
		want     statusapi.KernelCheck
		affinity statusapi.Affinity
		fine     bool
	}{
		{proxy.Inspected{Objects: 7}, nil, statusapi.KernelCheck{State: statusapi.KernelAgrees, Objects: 7}, statusapi.Affinity{}, true},
		{
			proxy.Inspected{Objects: 7, Unread: "IPVS", Remembered: endpoint},
			nil,
			statusapi.KernelCheck{State: statusapi.KernelAgrees, Objects: 7, Unread: "IPVS"},
			statusapi.Affinity{Endpoint: endpoint.String()},
			true,
		},
		{
			proxy.Inspected{Objects: 7, Differences: []proxy.Difference{gone}, RememberedUnknown: "no list"},
			nil,
			statusapi.KernelCheck{State: statusapi.KernelDiffers, Objects: 7, Differing: 1, Differences: []statusapi.KernelDifference{statusapi.KernelDifference(gone)}},
			statusapi.Affinity{Unknown: "no list"},
			false,
		},
		{
			proxy.Inspected{Differences: slices.Repeat([]proxy.Difference{gone}, maxListed+1)},
			nil,
			statusapi.KernelCheck{State: statusapi.KernelDiffers, Differing: maxListed + 1, Differences: slices.Repeat([]statusapi.KernelDifference{statusapi.KernelDifference(gone)}, maxListed)},
			statusapi.Affinity{},
			false,
		},
		{proxy.Inspected{}, proxy.ErrNeedSync, statusapi.KernelCheck{State: statusapi.KernelNotChecked, Why: proxy.ErrNeedSync.Error()}, unread, true},
		{proxy.Inspected{Objects: 7, Remembered: endpoint}, failed, statusapi.KernelCheck{State: statusapi.KernelFailed, Why: "no netlink"}, unread, false},
	} {
		a, err := worldOf(t).Explain(Question{To: "192.168.0.2:30080", From: client.String()})
		must(t, err)
		if what, ok := a.Inspection(); !ok || what != (proxy.Inspection{Row: a.Row.Key, List: proxy.ScopeLocal, Client: client}) {
			t.Errorf("asked to read back %+v, %t", what, ok)
		}
		a.Compare(tt.is, tt.err)
		tt.affinity.Seconds = 10800
		if diff := cmp.Diff(tt.want, a.Kernel); diff != "" || *a.Affinity != tt.affinity || a.Fine() != tt.fine {
			t.Errorf("%+v, error %v: affinity %+v, fine %t, mismatch (-want +got):\n%s", tt.is, tt.err, a.Affinity, a.Fine(), diff)
		}
	}
}

// TestExplainInModeIPVS checks that addresses of Services do not count as the node's
// although mode ipvs assigns them to it, and that their other ports are rejected.
func TestExplainInModeIPVS(t *testing.T) {
	r := resolverOf(t, objects)
	r.Update()
	held := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("10.96.0.1") || a == netip.MustParseAddr("198.51.100.1")
	}
	for _, tt := range []struct {
		mode, to string
		held     func(netip.Addr) bool
		verdict  string
		reason   statusapi.Reason
	}{
		{"ipvs", "10.96.0.1:81", held, "reject", statusapi.PortNotOfService},
		{"ipvs", "198.51.100.1:81", held, "reject", statusapi.NoSuchFrontend},
		{"ipvs", "198.51.100.1:30080", held, "reject", statusapi.NoSuchFrontend},
		{"ipvs", "203.0.113.1:81", held, "untouched", statusapi.NoSuchFrontend},
		{"ipvs", "198.51.100.1:81", nil, "untouched", statusapi.NoSuchFrontend}, // the node's own
		{"nftables", "198.51.100.1:81", held, "untouched", statusapi.NoSuchFrontend},
	} {
		w := World{Resolver: r, Mode: tt.mode, Held: tt.held, Local: held}
		a, err := w.Explain(Question{To: tt.to, From: "10.1.0.7"})
		must(t, err)
		if a.Verdict != tt.verdict || a.Reason != tt.reason {
			t.Errorf("%s, mode %s: %s %s, want %s %s", tt.to, tt.mode, a.Verdict, a.Reason, tt.verdict, tt.reason)
		}
	}
}

// TestExplainInModeKernelspace checks that no packet is rejected or dropped, and that
// all clients are handled like clients elsewhere.
func TestExplainInModeKernelspace(t *testing.T) {
	w := worldOf(t)
	w.Mode = "kernelspace"
	const note = "mode kernelspace can neither reject nor drop: ordinary routing applies, as if there were no Service"
	for to, reason := range map[string]statusapi.Reason{
		"ns/xweb": statusapi.NoEndpoints, "10.96.0.1:81": statusapi.PortNotOfService, "10.96.0.99:80": statusapi.UnallocatedAddress,
	} {
		a, err := w.Explain(Question{To: to})
		must(t, err)
		if a.Verdict != "untouched" || a.Reason != reason || !slices.Contains(a.Notes, note) {
			t.Errorf("%s: %s %s, notes %q", to, a.Verdict, a.Reason, a.Notes)
		}
	}
	for _, from := range []string{"10.1.0.7", "192.168.0.2", "203.0.113.9"} {
		a, err := w.Explain(Question{To: "198.51.100.1:80", From: from})
		must(t, err)
		if a.Verdict != "forward" || a.Scope != "Local" || len(a.Candidates) != 1 {
			t.Errorf("from %s: %s, %s, candidates %+v", from, a.Verdict, a.Scope, a.Candidates)
		}
	}
}

// TestExplainDenied checks that the answer lists the first Services that ask for an
// address which the configuration denies.
func TestExplainDenied(t *testing.T) {
	r := resolve.New(resolve.Settings{Allowed: apiobject.Allowed{ExternalIPs: []netip.Prefix{}}})
	for i := range 2 * maxDenied {
		r.Services.Update(nil, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%02d", i)},
			Spec: v1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), ExternalIPs: []string{"8.8.8.8"}, Ports: []v1.ServicePort{{Port: 80}},
			},
		})
	}
	r.Update()
	w := &World{Resolver: r}
	a, err := w.Explain(Question{To: "8.8.8.8:80"})
	must(t, err)
	const want = "Service ns/s00: spec.externalIPs[0]: 8.8.8.8 is not within --allowed-external-ips; it is left out"
	if a.Reason != statusapi.NoSuchFrontend || len(a.Notes) != maxDenied || a.Notes[0] != want || len(a.Try) != 3 {
		t.Errorf("the address: %s, notes %q, try %q", a.Reason, a.Notes, a.Try)
	}
	a, err = w.Explain(Question{To: "ns/s00"})
	must(t, err)
	if !slices.Equal(a.Notes, []string{want}) {
		t.Errorf("the Service: notes %q", a.Notes)
	}
	a, err = w.Explain(Question{To: "8.8.4.4:80"})
	must(t, err)
	if a.Notes != nil || len(a.Try) != 2 {
		t.Errorf("another address: notes %q, try %q", a.Notes, a.Try)
	}
}

// TestExplainManyCandidates checks that of more candidates than an answer lists, the
// same ones are listed whatever the history of the node.
func TestExplainManyCandidates(t *testing.T) {
	const service = `{kind: Service, metadata: {namespace: ns, name: big}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`
	candidates := func(history ...int) []statusapi.Candidate {
		r := resolverOf(t, service)
		for _, first := range append(history, 0) {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "big-1", Labels: map[string]string{discoveryv1.LabelServiceName: "big"}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}},
			}
			for i := first; i < maxListed+50; i++ {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/100, i%100+1)}})
			}
			r.Endpoints.Update(slice, false)
			r.Update()
		}
		a, err := (&World{Resolver: r}).Explain(Question{To: "ns/big"})
		must(t, err)
		if a.CandidateCount != maxListed+50 || len(a.Candidates) != maxListed {
			t.Errorf("%d candidates, %d listed", a.CandidateCount, len(a.Candidates))
		}
		return a.Candidates
	}
	if fresh, grown := candidates(), candidates(100); !slices.Equal(fresh, grown) {
		t.Errorf("candidates of one node\n%v\nand of one that had others before\n%v", fresh, grown)
	}
}

// TestExplainManyPorts checks that the cost is that of the endpoints of one port,
// because the engine waits meanwhile. Describing every port with all its endpoints
// would take seconds.
func TestExplainManyPorts(t *testing.T) {
	const many = 300
	var ports, endpoints strings.Builder
	for i := range many {
		fmt.Fprintf(&ports, "{name: p%d, port: %d}, ", i, 1000+i)
		fmt.Fprintf(&endpoints, "{addresses: [10.1.%d.%d]}, ", i/100, i%100+1)
	}
	r := resolverOf(t, fmt.Sprintf(`
{kind: Service, metadata: {namespace: ns, name: big}, spec: {clusterIP: 10.96.0.1, externalIPs: [198.51.100.1], ports: [%s]}}
---
{kind: EndpointSlice, metadata: {namespace: ns, name: big-1, labels: {kubernetes.io/service-name: big}}, addressType: IPv4, ports: [%[1]s], endpoints: [%[2]s]}
`, ports.String(), endpoints.String()))
	r.Update()
	w := &World{Resolver: r}
	began := time.Now()
	for to, want := range map[string]statusapi.Reason{
		"ns/big:p7": statusapi.Forwarded, "10.96.0.1:1007": statusapi.Forwarded,
		"10.96.0.1:9": statusapi.PortNotOfService, "198.51.100.1:9": statusapi.NoSuchFrontend,
	} {
		if a, err := w.Explain(Question{To: to}); err != nil || a.Reason != want {
			t.Errorf("%s: %+v, error %v; want %s", to, a, err, want)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}
