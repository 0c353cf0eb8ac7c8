package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

const (
	servicePort = 80
	podPort     = 8080
)

// scene is what one test sets up in the cluster, and what is cleared away
// after it.
type scene struct {
	*testing.T
	namespace string
	proxies   []*process.Process // in the order of the nodes
	ran       map[*testbed.Node][]*process.Process
	clients   []place // a pod on each node
	names     map[netip.Addr]string
}

// place is where requests come from.
type place struct {
	name  string
	host  *lab.Host
	addrs []netip.Addr // one of each family
	free  bool         // sockets are not bound: the kernel chooses their address
}

// source is the address that a socket is to be bound to; invalid: none.
func (p place) source(to netip.AddrPort) netip.Addr {
	if p.free {
		return netip.Addr{}
	}
	return p.addrs[proxy.FamilyOf(to.Addr())]
}

// newScene prepares a namespace of the API and a client on each node, and
// starts the proxies.
func newScene(t *testing.T, args ...string) *scene {
	s := newBareScene(t)
	for _, n := range bed.Nodes {
		s.proxies = append(s.proxies, s.startProxy(n, testbed.Proxy{Args: args}))
	}
	return s
}

// newBareScene is newScene without proxies.
func newBareScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, namespace: strings.ToLower(t.Name()), names: map[netip.Addr]string{}, ran: map[*testbed.Node][]*process.Process{}}
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	_, err := bed.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(s.clear)
	t.Cleanup(s.showLogs)
	for _, n := range bed.Nodes { // no test shall live on what another has left
		if err := bed.CleanUp(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range bed.Nodes {
		p := s.pod(n, "client")
		s.clients = append(s.clients, place{name: "pod on " + n.Name, host: p.Host, addrs: p.Addrs, free: true})
	}
	return s
}

// clear deletes the objects of the scene. The namespace stays: without a
// controller it would never be gone.
func (s *scene) clear() {
	ctx := context.Background() // a cleanup comes when the test's own context has ended
	services := bed.Client.CoreV1().Services(s.namespace)
	list, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Errorf("list Services: %v", err)
		return
	}
	parallel(len(list.Items), func(i int) {
		name := list.Items[i].Name
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete Service %s: %v", name, err)
		}
	})
	endpoints := bed.Client.DiscoveryV1().EndpointSlices(s.namespace)
	if err := endpoints.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		s.Errorf("delete EndpointSlices: %v", err)
	}
}

// startProxy starts the proxy of a node until the test ends.
func (s *scene) startProxy(n *testbed.Node, p testbed.Proxy) *process.Process {
	s.Helper()
	running, err := bed.StartProxy(n, p)
	if err != nil {
		s.Fatal(err)
	}
	s.ran[n] = append(s.ran[n], running)
	s.Cleanup(func() {
		if err := running.Stop(); err != nil {
			s.Error(err)
		}
	})
	return running
}

// showLogs prints what the last two proxies of each node said to a test that failed.
// More would bury what went wrong.
func (s *scene) showLogs() {
	if !s.Failed() {
		return
	}
	for _, all := range s.ran {
		for _, p := range all[max(0, len(all)-2):] {
			s.Logf("the last lines of %s:\n%s", p.Name, p.Tail(10))
		}
	}
}

// onNode is a process of the node itself. Where IPVS is played, it is bound to the
// node's address: a Service's address is the node's own then, and would be its source,
// which goes with the mode. What that may cost is a gap of the test's
// (docs/mode-changes.md).
func onNode(n *testbed.Node) place {
	return place{name: n.Name, host: n.Host, addrs: n.Addrs, free: !strings.Contains(*modes, testbed.IPVS)}
}

// outside is a client somewhere else that knows this node.
func outside(n *testbed.Node) place {
	return place{name: "outside of " + n.Name, host: n.Outside, addrs: []netip.Addr{
		netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:ffff::9"),
	}}
}

// pod starts a pod that answers until the test ends.
func (s *scene) pod(n *testbed.Node, name string) *testbed.Pod {
	s.Helper()
	p, err := n.AddPod(name, testbed.Port{Protocol: proxy.TCP, Number: podPort}, testbed.Port{Protocol: proxy.UDP, Number: podPort})
	if err != nil {
		s.Fatal(err)
	}
	for _, a := range p.Addrs {
		s.names[a] = name
	}
	s.Cleanup(func() {
		if err := p.Remove(); err != nil {
			s.Error(err)
		}
	})
	return p
}

// pods starts one pod on each node: name-1, name-2, name-3.
func (s *scene) pods(name string) []*testbed.Pod {
	s.Helper()
	var out []*testbed.Pod
	for i, n := range bed.Nodes {
		out = append(out, s.pod(n, fmt.Sprintf("%s-%d", name, i+1)))
	}
	return out
}

// ready makes members of pods that are all ready.
func ready(pods ...*testbed.Pod) []testbed.Member {
	var out []testbed.Member
	for _, p := range pods {
		out = append(out, testbed.Member{Pod: p})
	}
	return out
}

// service creates a Service of both families that listens with TCP and UDP;
// changes are made before it is created.
func (s *scene) service(name string, changes ...func(*v1.Service)) *v1.Service {
	s.Helper()
	both := v1.IPFamilyPolicyRequireDualStack
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec: v1.ServiceSpec{
			IPFamilyPolicy: &both,
			Ports: []v1.ServicePort{
				{Name: "tcp", Protocol: v1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(podPort)},
				{Name: "udp", Protocol: v1.ProtocolUDP, Port: servicePort, TargetPort: intstr.FromInt32(podPort)},
			},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	made, err := bed.Client.CoreV1().Services(s.namespace).Create(s.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		s.Fatalf("create Service %s: %v", name, err)
	}
	return made
}

// update changes a Service and returns it as it is then.
func (s *scene) update(svc *v1.Service, change func(*v1.Service)) *v1.Service {
	s.Helper()
	api := bed.Client.CoreV1().Services(s.namespace)
	now, err := api.Get(s.Context(), svc.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatalf("get Service %s: %v", svc.Name, err)
	}
	change(now)
	if now, err = api.Update(s.Context(), now, metav1.UpdateOptions{}); err != nil {
		s.Fatalf("update Service %s: %v", svc.Name, err)
	}
	return now
}

// publish writes the EndpointSlices of a Service.
func (s *scene) publish(svc *v1.Service, members ...testbed.Member) {
	s.Helper()
	if err := bed.Publish(s.Context(), svc, members...); err != nil {
		s.Fatal(err)
	}
}
