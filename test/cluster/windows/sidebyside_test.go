package windows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
	"sluice/test/cluster/apiserver"
	"sluice/test/cluster/build"
	"sluice/test/wine"
)

// patience is how long a proxy may take to get somewhere. Starting one takes
// seconds, and kube-proxy sleeps for ten more on an overlay network.
const patience = time.Minute

// peer is a proxy on a node of its own.
type peer struct {
	name    string
	hns     *hnstest.Fake
	windows *wine.Windows
	log     string
	last    []string // its state when the last step had ended
}

// moved reports whether a step has come to something.
func (p *peer) moved() bool { return !slices.Equal(p.state(), p.last) }

func (p *peer) balancers() (n int) {
	for _, line := range p.state() {
		if strings.HasPrefix(line, "load balancer") {
			n++
		}
	}
	return n
}

// start runs a program with the flags that both have.
func start(t *testing.T, name, exe string, network hns.Network, objects http.Handler, flags ...string) *peer {
	t.Helper()
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &peer{name: name, hns: hnstest.NewFake(hnstest.Full, network), log: filepath.Join(t.TempDir(), name+".log")}
	plugIn(t, p.hns, network.Name)
	p.last = p.state()
	var api net.Listener
	err = l.Node().Do(func() (err error) {
		p.windows = wine.Start(t, p.hns, network.Name)
		api, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: objects}
	go func() { _ = server.Serve(api) }() // until it is closed
	t.Cleanup(func() { server.Close() })
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	flags = append(flags, "--master=http://"+api.Addr().String(), "--hostname-override=here", "--network-name="+network.Name, "--proxy-mode=kernelspace")
	cmd := p.windows.Command(context.Background(), exe, flags...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := l.Node().Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(cmd.Process.Kill(), out.Close())
		_ = cmd.Wait() // it was killed
		if text, _ := os.ReadFile(p.log); t.Failed() {
			t.Logf("%s, error %v, wrote:\n%s", name, err, text)
		}
	})
	return p
}

// plugIn makes the endpoints of pods here, as a network plugin does.
func plugIn(t *testing.T, service *hnstest.Fake, network string) {
	t.Helper()
	n, err := service.Network(t.Context(), network)
	if err != nil {
		t.Fatal(err)
	}
	for i, addr := range []string{"10.244.1.10", "10.244.1.11"} {
		e := hns.Endpoint{Name: fmt.Sprint("pod-", i), Addrs: []netip.Addr{netip.MustParseAddr(addr)}, MAC: fmt.Sprintf("0E-2A-0A-F4-01-%02X", 10+i)}
		if _, err := service.CreateEndpoint(t.Context(), n.ID, e); err != nil {
			t.Fatal(err)
		}
	}
}

const node = `
apiVersion: v1
kind: Node
metadata: {name: here}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}`

// service begins a Service whose port more goes on with.
func service(name, clusterIP, more string, ingress ...string) string {
	status := ""
	for _, ip := range ingress {
		status += fmt.Sprintf("\nstatus: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}]}}", ip)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: %[2]s, clusterIPs: [%[2]s], ipFamilies: [IPv4], internalTrafficPolicy: Cluster, ports: [{name: main, port: 80, protocol: TCP, targetPort: 8080%[3]s}%s`,
		name, clusterIP, more, status)
}

// slice has endpoints of a Service; those of 10.244.1.0/24 are here.
func slice(service string, addrs ...string) string {
	var endpoints []string
	for _, a := range addrs {
		on := "there"
		if strings.HasPrefix(a, "10.244.1.") {
			on = "here"
		}
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s], nodeName: %s, conditions: {ready: true, serving: true}}", a, on))
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: main, port: 8080, protocol: TCP}]
endpoints: [%[2]s]`, service, strings.Join(endpoints, ", "))
}

// steps are changes of objects, one after the other.
var steps = []struct {
	name      string
	objects   []string
	deletes   []string // paths of objects
	balancers int      // that there are in the end
}{
	{name: "the start", balancers: 3, objects: []string{
		node,
		service("web", "10.96.0.10", "}], type: ClusterIP, sessionAffinity: None"), slice("web", "10.244.1.10", "10.244.2.10"),
		service("sticky", "10.96.0.11", ", nodePort: 30080}], type: NodePort, externalTrafficPolicy: Cluster, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}"), slice("sticky", "10.244.1.11", "10.244.2.11"),
		service("idle", "10.96.0.12", "}], type: ClusterIP, sessionAffinity: None"), slice("idle"),
	}},
	{name: "an endpoint is replaced", balancers: 3, objects: []string{slice("web", "10.244.1.10", "10.244.2.20")}},
	{name: "Services that are reached from elsewhere", balancers: 10, objects: []string{
		service("shared", "10.96.0.20", ", nodePort: 30081}], externalIPs: [198.51.100.1], type: LoadBalancer, externalTrafficPolicy: Cluster, sessionAffinity: None", "203.0.113.1"),
		slice("shared", "10.244.1.10", "10.244.2.10"),
		service("nearby", "10.96.0.21", ", nodePort: 30082}], type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30090, sessionAffinity: None", "203.0.113.2"),
		slice("nearby", "10.244.1.10", "10.244.2.10"),
	}},
	{name: "a Service gets its first endpoint", balancers: 11, objects: []string{slice("idle", "10.244.1.11")}},
	{name: "a Service loses its endpoints", balancers: 10, objects: []string{slice("web")}},
	{name: "a Service goes", balancers: 8, deletes: []string{
		"/api/v1/namespaces/shop/services/sticky", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/sticky-1",
	}},
}

var networks = []struct {
	name    string
	network hns.Network
	flags   []string
}{
	{"bridge", bridge, nil},
	{"bridge, direct server return", bridge, []string{"--enable-dsr"}},
	{"overlay", overlay, []string{"--source-vip=10.244.1.2"}},
}

var (
	bridge  = hns.Network{Name: "pods", Type: "L2Bridge"}
	overlay = hns.Network{Name: "pods", Type: "Overlay", Remote: []hns.RemoteSubnet{{
		Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("192.168.0.3"), MAC: "00-15-5D-00-00-03",
	}}}
)

// TestSideBySide wants both services to have the same in the end of each step.
func TestSideBySide(t *testing.T) {
	exe, err := programs(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			objects := apiserver.New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			change(t, objects, steps[0].objects, nil)
			theirs := start(t, "kube-proxy", exe.theirs, n.network, objects, n.flags...)
			ours := start(t, "sluice", exe.ours, n.network, objects, append(n.flags, "--status-socket=")...) // Wine has no unix sockets
			for i, s := range steps {
				if i > 0 {
					change(t, objects, s.objects, s.deletes)
				}
				compare(t, s.name, s.balancers, theirs, ours)
			}
		})
	}
}

func change(t *testing.T, to *apiserver.Server, objects, deletes []string) {
	t.Helper()
	for _, o := range objects {
		if err := to.Load([]byte(o)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range deletes {
		w := httptest.NewRecorder()
		if to.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, path, nil)); w.Code != http.StatusOK {
			t.Fatalf("delete %s: %v", path, w.Result().Status)
		}
	}
}

type executables struct{ theirs, ours string }

// programs builds both.
func programs(t *testing.T) (exe executables, err error) {
	t.Helper()
	t.Chdir("..") // where the versions are
	b, err := build.New(func(line string) { t.Log(line) })
	if err != nil {
		return exe, err
	}
	b = b.ForWindows()
	if exe.theirs, err = b.Foreign(t.Context(), build.Kubernetes("kube-proxy")); err == nil {
		exe.ours, err = b.Daemon(t.Context())
	}
	return exe, err
}

// state is what a service has, but for two things in which kube-proxy differs on
// an overlay network: it writes its own MAC with colons, and makes a remote
// endpoint of a Service's address also while the Service has no load balancer.
func (p *peer) state() (all []string) {
	has := p.hns.State()
	for _, line := range has {
		if strings.HasPrefix(line, "endpoint") {
			line = strings.ReplaceAll(line, ":", "-")
		}
		vip, ok := strings.CutPrefix(line, "endpoint remote [10.96.")
		vip, _, _ = strings.Cut(vip, "]")
		if !ok || slices.ContainsFunc(has, func(other string) bool { return strings.HasPrefix(other, "load balancer 10.96."+vip+":") }) {
			all = append(all, line)
		}
	}
	return all
}

// compare waits until both have the same, after both have changed it.
func compare(t *testing.T, step string, balancers int, theirs, ours *peer) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		diff := cmp.Diff(theirs.state(), ours.state())
		if diff == "" && ours.moved() && ours.balancers() == balancers {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: Sluice made %d load balancers, want %d; what the services have (-kube-proxy +Sluice):\n%s", step, ours.balancers(), balancers, diff)
			break
		}
	}
	asked := [2]int{}
	for i, p := range []*peer{theirs, ours} {
		p.last = p.state()
		for _, n := range p.windows.Calls() {
			asked[i] += n
		}
	}
	t.Logf("%s: kube-proxy called the service %d times, Sluice %d", step, asked[0], asked[1])
	if asked[1] >= asked[0] {
		t.Errorf("%s: Sluice called the service %d times, want fewer than kube-proxy with %d", step, asked[1], asked[0])
	}
}
