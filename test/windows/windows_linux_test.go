package windows

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/conformance/subprocess"
	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
	"sluice/test/wine"
)

// program builds sluice.exe once, as make build-windows does.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-windows-")
	if err != nil {
		return "", err
	}
	exe := filepath.Join(dir, "sluice.exe")
	return exe, wine.Build(context.Background(), exe)
})

// TestMain removes the program.
func TestMain(m *testing.M) {
	code := m.Run()
	if !testing.Short() { // which builds none
		if exe, err := program(); err == nil {
			_ = os.RemoveAll(filepath.Dir(exe))
		}
	}
	os.Exit(code)
}

// pods is the HNS network of the pods, local the address of one here, remote of
// one on another node.
const (
	pods   = "Calico"
	local  = "10.244.0.5"
	remote = "10.244.1.5"
	other  = "10.244.1.6"
	vip    = "10.96.0.10"
)

// node is a node of Windows with a pod, and a folder of manifests.
type node struct {
	t       *testing.T
	windows *wine.Windows
	hns     *hnstest.Fake
	exe     string
	dir     string
	health  string // where the daemon answers: its address and port
	status  string
}

func newNode(t *testing.T) *node {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Wine and builds sluice.exe; left out by -short")
	}
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	network := hns.Network{Name: pods, Type: "L2Bridge"}
	n := &node{t: t, hns: hnstest.NewFake(hnstest.Full), exe: exe, dir: t.TempDir(), health: free(t), status: free(t)}
	network.ID = n.hns.SetNetwork(network)
	pod := hns.Endpoint{Network: network.ID, Name: "pod", Addrs: []netip.Addr{netip.MustParseAddr(local)}, MAC: "00-15-5d-00-00-05"}
	if _, err := n.hns.CreateEndpoint(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	n.windows = wine.Start(t, n.hns, pods)
	n.hns.Reset()
	return n
}

// free returns an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// drive returns the path of a file of this machine as Windows has it.
func drive(path string) string { return "Z:" + strings.ReplaceAll(path, "/", `\`) }

// flags are those of a daemon that serves the folder.
func (n *node) flags(more ...string) []string {
	return append([]string{
		"--manifests", drive(n.dir), "--hostname-override=node-1", "--network-name=" + pods, "--healthz-bind-address=" + n.health,
		"--metrics-bind-address=none", "--status-socket=", "--status-bind-address=" + n.status,
	}, more...)
}

// write puts a Service with endpoints into the folder at once.
func (n *node) write(name string, endpoints ...string) {
	n.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %s\n  ports: [{name: http, port: 80}]\n---\n", name, vip)
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n", name, name)
	for _, e := range endpoints {
		where := "node-2"
		if e == local {
			where = "node-1"
		}
		fmt.Fprintf(&b, "- {addresses: [%q], nodeName: %s}\n", e, where)
	}
	n.file(name+".yaml", b.String())
}

// file puts a file into the folder at once and returns its path.
func (n *node) file(name, text string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// run runs sluice.exe to its end.
func (n *node) run(args ...string) (output string, code int) {
	n.t.Helper()
	return n.output(n.windows.Command(n.t.Context(), n.exe, args...))
}

// output runs a program to its end. What it writes goes to a file, as Wine's own
// processes keep the descriptors of the program that started them.
func (n *node) output(cmd *exec.Cmd) (text string, code int) {
	n.t.Helper()
	file, err := os.CreateTemp(n.t.TempDir(), "output")
	if err != nil {
		n.t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	out, err := os.ReadFile(file.Name())
	if err != nil {
		n.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// process is a daemon that runs.
type process struct {
	*subprocess.Process
	n *node
}

// start starts a daemon and waits until it is healthy.
func (n *node) start(args ...string) *process {
	n.t.Helper()
	p, err := subprocess.Start(n.windows.Command(n.t.Context(), n.exe, args...), (*exec.Cmd).Start)
	if err != nil {
		n.t.Fatal(err)
	}
	n.eventually("the daemon is healthy", p.Log, func() bool {
		select {
		case <-p.Done:
			n.t.Fatalf("it ends: %v\n%s", p.Cmd.ProcessState, p.Log())
		default:
		}
		return n.healthy()
	})
	return &process{p, n}
}

func (n *node) healthy() bool {
	answer, err := http.Get("http://" + n.health + "/healthz")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// stop presses Ctrl-C.
func (p *process) stop() {
	p.n.t.Helper()
	if err := p.Cmd.Process.Signal(os.Interrupt); err != nil {
		p.n.t.Fatal(err)
	}
	select {
	case <-p.Done:
		if !p.Cmd.ProcessState.Success() || !strings.Contains(p.Log(), "Stopped, the rules stay in force") {
			p.n.t.Errorf("after Ctrl-C: %v\n%s", p.Cmd.ProcessState, p.Log())
		}
	case <-time.After(time.Minute):
		p.n.t.Fatalf("it does not stop\n%s", p.Log())
	}
}

// eventually waits for something to be so.
func (n *node) eventually(what string, log func() string, holds func() bool) {
	n.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			n.t.Fatalf("not so within a minute: %s\nHNS has\n%s\n%s", what, strings.Join(n.hns.State(), "\n"), log())
		}
	}
}

// balancers returns the load balancers in words.
func (n *node) balancers() []string {
	return slices.DeleteFunc(n.hns.State(), func(s string) bool { return !strings.HasPrefix(s, "load balancer ") })
}

// serves reports whether the Service goes to some endpoints.
func (n *node) serves(endpoints ...string) bool {
	all := n.balancers()
	slices.Sort(endpoints)
	want := fmt.Sprintf("load balancer %s:80 protocol 6 to %v port 8080", vip, endpoints)
	return len(all) == 1 && strings.HasPrefix(all[0], want)
}

func (n *node) wait(log func() string, endpoints ...string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the Service goes to %v", endpoints), log, func() bool { return n.serves(endpoints...) })
}
