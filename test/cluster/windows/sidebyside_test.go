package windows

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
const (
	patience = time.Minute
	interval = 200 * time.Millisecond
)

// node runs one proxy at a time.
type node struct {
	hns     *hnstest.Fake
	windows *wine.Windows
	host    *lab.Host
	flags   []string // that every proxy here has
	last    []string // the state when the last step had ended
}

// newNode makes a node on a network, from which the API server can be reached.
func newNode(t *testing.T, network hns.Network, objects http.Handler, flags ...string) *node {
	t.Helper()
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	n := &node{hns: hnstest.NewFake(hnstest.Full, network), host: l.Node()}
	plugIn(t, n.hns, network.Name)
	n.last = n.state()
	var api net.Listener
	err = n.host.Do(func() (err error) {
		n.windows = wine.Start(t, n.hns, network.Name)
		api, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: objects}
	go func() { _ = server.Serve(api) }() // until it is closed
	t.Cleanup(func() { server.Close() })
	n.flags = append(flags, "--master=http://"+api.Addr().String(), "--hostname-override=here", "--network-name="+network.Name, "--proxy-mode=kernelspace")
	return n
}

// run runs a proxy until the test has ended, or until it is killed.
func (n *node) run(t *testing.T, exe string, flags ...string) (kill func()) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(exe)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.windows.Command(context.Background(), exe, slices.Concat(n.flags, flags)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := n.host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
		if text, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%s wrote:\n%s", exe, text)
		}
		out.Close()
	})
	t.Cleanup(kill)
	return kill
}

// moved reports whether a step has come to something.
func (n *node) moved() bool { return !slices.Equal(n.state(), n.last) }

func (n *node) balancers() (count int) {
	for _, line := range n.state() {
		if strings.HasPrefix(line, "load balancer") {
			count++
		}
	}
	return count
}

// plugIn makes the endpoints of pods here, as a network plugin does.
func plugIn(t *testing.T, service *hnstest.Fake, network string) {
	t.Helper()
	n, err := service.Network(t.Context(), network)
	if err != nil {
		t.Fatal(err)
	}
	for i, addr := range []string{"10.244.1.10", "10.244.1.11", "fd00:244:1::10"} {
		e := hns.Endpoint{Network: n.ID, Name: fmt.Sprint("pod-", i), Addrs: []netip.Addr{netip.MustParseAddr(addr)}, MAC: fmt.Sprintf("0E-2A-0A-F4-01-%02X", 10+i)}
		if _, err := service.CreateEndpoint(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

const here = `
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
spec: {clusterIP: %[2]q, clusterIPs: [%[2]q], ipFamilies: [%[5]s], internalTrafficPolicy: Cluster, ports: [{name: main, port: 80, protocol: TCP, targetPort: 8080%[3]s}%s`,
		name, clusterIP, more, status, family(clusterIP))
}

// slice has endpoints of a Service; those of 10.244.1.0/24 and fd00:244:1::/48 are
// here.
func slice(service string, addrs ...string) string {
	var endpoints []string
	for _, a := range addrs {
		on := "there"
		if strings.HasPrefix(a, "10.244.1.") || strings.HasPrefix(a, "fd00:244:1:") {
			on = "here"
		}
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: true, serving: true}}", a, on))
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: main, port: 8080, protocol: TCP}]
endpoints: [%[2]s]`, service, strings.Join(endpoints, ", "), family(slices.Concat(addrs, []string{"10.0.0.0"})[0]))
}

func family(addr string) string {
	if strings.Contains(addr, ":") {
		return "IPv6"
	}
	return "IPv4"
}

// step is a change of objects.
type step struct {
	name      string
	objects   []string
	deletes   []string // paths of objects
	balancers int      // that there are in the end
}

// steps follow each other; last is for networks that can do both families.
var steps = []step{
	{name: "the start", balancers: 3, objects: []string{
		here,
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
		Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("192.168.0.3"),
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
			theirs, ours := newNode(t, n.network, objects, n.flags...), newNode(t, n.network, objects, n.flags...)
			theirs.run(t, exe.theirs)
			ours.run(t, exe.ours, noSocket)
			all := steps
			if n.network.Type != "Overlay" {
				all = append(slices.Clone(steps), last)
			}
			for i, s := range all {
				if i > 0 {
					change(t, objects, s.objects, s.deletes)
				}
				compare(t, s.name, s.balancers, theirs, ours)
			}
		})
	}
}

var last = step{name: "a Service of IPv6", balancers: 10, objects: []string{
	service("six", "fd00:96::10", ", nodePort: 30086}], type: NodePort, externalTrafficPolicy: Cluster, sessionAffinity: None"),
	slice("six", "fd00:244:1::10", "fd00:244:2::10"),
}}

// noSocket is for Sluice: Wine has no unix sockets.
const noSocket = "--status-socket="

// TestTakeover has Sluice follow kube-proxy, after which an endpoint was replaced:
// it writes that, and leaves the other load balancers alone.
func TestTakeover(t *testing.T) {
	exe, err := programs(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			objects := apiserver.New([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			change(t, objects, slices.Concat(steps[0].objects, steps[2].objects), nil)
			node := newNode(t, n.network, objects, n.flags...)
			kill := node.run(t, exe.theirs)
			wait(t, "kube-proxy makes load balancers", func() bool { return node.balancers() == steps[2].balancers })
			kill()
			change(t, objects, steps[1].objects, nil)
			node.hns.Reset()
			node.run(t, exe.ours, noSocket)
			wait(t, "Sluice replaces an endpoint", func() bool {
				return slices.ContainsFunc(node.state(), func(line string) bool {
					return strings.HasPrefix(line, "load balancer 10.96.0.10:80 protocol 6 to [10.244.1.10 10.244.2.20]")
				})
			})
			_, done := node.hns.Reset()
			done = slices.DeleteFunc(done, func(line string) bool { return !strings.Contains(line, "load balancer") })
			if len(done) != 1 || !strings.HasPrefix(done[0], "update load balancer 10.96.0.10:80") {
				t.Errorf("Sluice did this to load balancers: %q; want one to be updated", done)
			}
		})
	}
}

// wait waits for something.
func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it does not, in %v", what, patience)
		}
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
	if testing.Short() {
		t.Skip("needs Wine, and builds kube-proxy from sources of the network; left out by -short")
	}
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
func (n *node) state() (all []string) {
	has := n.hns.State()
	for _, line := range has {
		if strings.HasPrefix(line, "endpoint") {
			line = strings.ReplaceAll(line, ":", "-") // and those of IPv6 addresses
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
func compare(t *testing.T, step string, balancers int, theirs, ours *node) {
	t.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	started := time.Now()
	for ; ; <-tick.C {
		diff := cmp.Diff(theirs.state(), ours.state())
		if diff == "" && ours.moved() && ours.balancers() == balancers {
			break
		}
		if time.Since(started) > patience {
			t.Fatalf("%s: Sluice made %d load balancers, want %d; what the services have (-kube-proxy +Sluice):\n%s", step, ours.balancers(), balancers, diff)
		}
	}
	asked := [2]int{}
	for i, n := range []*node{theirs, ours} {
		n.last = n.state()
		for _, calls := range n.windows.Calls() {
			asked[i] += calls
		}
	}
	t.Logf("%s: kube-proxy called the service %d times, Sluice %d", step, asked[0], asked[1])
	if asked[1] >= asked[0] && time.Since(started) < 20*time.Second { // each lists everything from time to time
		t.Errorf("%s: Sluice called the service %d times, want fewer than kube-proxy with %d", step, asked[1], asked[0])
	}
}
