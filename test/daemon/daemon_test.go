package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "sluice/internal/app" // so that cached test results depend on the daemon's sources
	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/subprocess"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/vm/guest"
)

var (
	clusterIP = netip.MustParseAddrPort("172.30.0.10:80")
	secondIP  = netip.MustParseAddrPort("172.30.0.20:80")
	clusterV6 = netip.MustParseAddrPort("[fd00:172:30::10]:80")
	podA      = netip.MustParseAddr("10.0.0.11")
	podB      = netip.MustParseAddr("10.0.0.12")
	client    = netip.MustParseAddr("10.0.0.2")
	podV6     = netip.MustParseAddr("fd00:10::11")
	clientV6  = netip.MustParseAddr("fd00:10::2")
)

// binary builds the daemon once, as make build does. A virtual machine has no compiler and brings
// the binary along.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(guest.DaemonVariable); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "sluice-daemon-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sluice")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return path, nil
})

// TestMain removes the binary, or runs as the confined program of a test.
func TestMain(m *testing.M) {
	if file := os.Getenv(filterFile); file != "" {
		fmt.Fprintln(os.Stderr, confine(file))
		os.Exit(1)
	}
	code := m.Run()
	if path, err := binary(); err == nil && os.Getenv(guest.DaemonVariable) == "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// site is a lab with two pods that answer, a client pod and a folder of manifests.
type site struct {
	t      *testing.T
	lab    *lab.Lab
	client *lab.Host
	pods   map[netip.Addr]*lab.Host
	dir    string
	flags  []string // of every daemon, in addition to those of a test
	socket string   // status socket; short, because the path of a Unix socket is limited to 108 bytes

	patience time.Duration // timeout of the connections of a load; 0 means long enough for a retry
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteIn(t, lab.Config{})
}

func newSiteIn(t *testing.T, c lab.Config) *site {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s := &site{t: t, lab: l, pods: map[netip.Addr]*lab.Host{}, dir: t.TempDir(), socket: filepath.Join(short, "s")}
	s.flags = []string{"--manifests", s.dir, "--nodeport-addresses", "0.0.0.0/0"}
	for name, addrs := range map[string][]netip.Addr{"a": {podA, podV6}, "b": {podB}, "client": {client, clientV6}} {
		h, err := l.AddPod(name, addrs...)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			s.pods[a] = h
			if name != "client" {
				s.listen(h, netip.AddrPortFrom(a, 8080))
			}
		}
	}
	s.client = s.pods[client]
	return s
}

func (s *site) listen(h *lab.Host, a netip.AddrPort) {
	s.t.Helper()
	ln, err := h.Listen(proxy.TCP, a)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ln.Close() })
}

// write writes a manifest into the folder atomically.
func (s *site) write(name, text string) {
	s.t.Helper()
	tmp := filepath.Join(s.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// service returns the manifests of a Service with endpoints.
func service(name string, vip netip.AddrPort, endpoints ...netip.Addr) string {
	kind := "IPv4"
	if vip.Addr().Is6() {
		kind = "IPv6"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %q\n  ports: [{name: http, port: %d}]\n---\n", name, vip.Addr(), vip.Port())
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: [{name: http, port: 8080}]\nendpoints:\n", name, name, kind)
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%q], nodeName: test-node}\n", e)
	}
	return b.String()
}

// process is a running daemon.
type process struct {
	*subprocess.Process
	t *testing.T
}

// synced returns when the daemon logged its first sync; zero means not yet.
func (p *process) synced() time.Time { return p.LoggedAt("First sync done") }

func (p *process) log() string { return p.Log() }

// settings returns the flags that a daemon and sluice render must share.
func (s *site) settings() []string {
	return append([]string{"--hostname-override", "test-node", "--cluster-cidr", "10.0.0.0/8,fd00:10::/64"}, s.flags...)
}

// start starts the daemon with the folder, in the node's namespace.
func (s *site) start(change func(*exec.Cmd), args ...string) *process {
	s.t.Helper()
	p, err := start(s.t, s.lab.Node(), change, slices.Concat(s.settings(), []string{"-v", "2", "--status-socket", s.socket}, args)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if s.t.Failed() {
			s.t.Logf("the daemon's log:\n%s", p.log())
		}
	})
	return p
}

// start starts a daemon in a node's namespace.
func start(t *testing.T, node *lab.Host, change func(*exec.Cmd), args ...string) (*process, error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	p, err := subprocess.Start(exec.Command(path, args...), func(cmd *exec.Cmd) error {
		if change != nil {
			change(cmd)
		}
		return node.Start(cmd)
	})
	return &process{p, t}, err
}

// end signals the daemon, waits for it and returns its exit code.
func (p *process) end(sig syscall.Signal) int {
	_ = p.Cmd.Process.Signal(sig) // an error means that it has already ended
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.Done:
		return p.Cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		p.t.Fatalf("the daemon does not exit; its log:\n%s", p.log())
		return -1
	}
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !within(15*time.Second, holds) {
		t.Fatalf("timed out waiting for: %s", what)
	}
}

// within reports whether something holds within some time.
func within(d time.Duration, holds func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(traffic.Scaled(d)); time.Now().Before(deadline); <-tick.C {
		if holds() {
			return true
		}
	}
	return false
}

// ask makes one connection and returns the endpoint that answered and the fate of the connection.
func (s *site) ask(src netip.Addr, dst netip.AddrPort) (netip.Addr, traffic.Fate) {
	s.t.Helper()
	return s.askBy(proxy.TCP, src, dst)
}

func (s *site) askBy(p proxy.Protocol, src netip.Addr, dst netip.AddrPort) (netip.Addr, traffic.Fate) {
	s.t.Helper()
	seen, err := s.pods[src].Probe(context.Background(), []traffic.Flow{{Protocol: p, Src: src, Dst: dst, Patience: traffic.Scaled(300 * time.Millisecond)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return seen[0].By.Addr(), seen[0].Fate
}

// answers returns a condition: an endpoint answers for a Service.
func (s *site) answers(dst netip.AddrPort, by netip.Addr) func() bool {
	src := client
	if dst.Addr().Is6() {
		src = clientV6
	}
	return func() bool {
		got, fate := s.ask(src, dst)
		return fate == traffic.Answered && got == by
	}
}

// TestStopLeavesTheRules stops the daemon with SIGTERM and with SIGKILL: new and existing
// connections continue, and the next daemon takes over without a gap.
func TestStopLeavesTheRules(t *testing.T) {
	s := newSite(t)
	echo := s.echo(podA, 9090)
	s.write("web.yaml", service("web", clusterIP, podA))
	s.write("echo.yaml", strings.ReplaceAll(service("echo", secondIP, podA), "port: 8080", fmt.Sprintf("port: %d", echo)))
	d := s.start(nil)
	eventually(t, "the Service", s.answers(clusterIP, podA))

	open, err := s.client.Dial(t.Context(), proxy.TCP, client, secondIP)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	s.alive(open, "after SIGTERM")
	if !s.answers(clusterIP, podA)() {
		t.Error("the Service does not answer after SIGTERM")
	}
	s.write("web.yaml", service("web", clusterIP, podB)) // while nobody looks
	d = s.start(nil)
	eventually(t, "what changed meanwhile", s.answers(clusterIP, podB))
	d.end(syscall.SIGKILL)
	s.alive(open, "after SIGKILL")

	// No connection fails while a daemon starts on rules that are there.
	failed := make(chan int)
	stop := make(chan struct{})
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				failed <- n
				return
			default:
				if _, fate := s.ask(client, clusterIP); fate != traffic.Answered {
					n++
				}
			}
		}
	}()
	d = s.start(nil)
	eventually(t, "the first sync", func() bool { return strings.Contains(d.log(), "First sync done") })
	close(stop)
	if n := <-failed; n != 0 {
		t.Errorf("%d connections failed during a restart", n)
	}
	s.alive(open, "after the restart")
}

// echo starts a server on a pod that sends back what it gets.
func (s *site) echo(pod netip.Addr, port uint16) uint16 {
	s.t.Helper()
	var ln net.Listener
	if err := s.pods[pod].Do(func() error {
		var err error
		ln, err = net.Listen("tcp", netip.AddrPortFrom(pod, port).String())
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return port
}

// alive sends a line over an open connection and wants it back.
func (s *site) alive(c net.Conn, when string) {
	s.t.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := c.Write([]byte("ping")); err != nil {
		s.t.Fatalf("open connection %s: %v", when, err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		s.t.Fatalf("open connection %s: %q, %v", when, got, err)
	}
}

// TestFlushIsRepaired flushes all rules behind the daemon's back, in each mode
// and variant.
func TestFlushIsRepaired(t *testing.T) {
	for _, tt := range []struct{ name, mode, before, flush string }{
		{"nftables", "nftables", "true", "nft flush ruleset"},
		{"iptables-nft", "iptables", "true", "nft flush ruleset"},
		{"iptables-legacy", "iptables", "iptables-legacy -t nat -N KUBE-KUBELET-CANARY", "iptables-legacy -t nat -F"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			sh := func(command string) {
				t.Helper()
				if err := s.lab.Node().Do(exec.Command("sh", "-c", command).Run); err != nil {
					t.Fatalf("%s: %v", command, err)
				}
			}
			sh(tt.before)
			s.write("web.yaml", service("web", clusterIP, podA))
			d := s.start(nil, "--proxy-mode", tt.mode)
			eventually(t, "the Service", s.answers(clusterIP, podA))
			for range 3 {
				s.await() // else it finds out by its own write
				sh(tt.flush)
				eventually(t, "the repair", s.answers(clusterIP, podA))
			}
			if !strings.Contains(d.log(), "Another process changed our rules") {
				t.Error("the log says nothing of the repair")
			}
		})
	}
}

// TestBadManifests breaks files in many ways: each is named, the last good state
// and all other Services go on, and mending the file mends the state.
func TestBadManifests(t *testing.T) {
	s := newSite(t)
	s.write("good.yaml", service("good", secondIP, podB))
	s.write("web.yaml", service("web", clusterIP, podA))
	d := s.start(nil)
	eventually(t, "the Service", s.answers(clusterIP, podA))
	for _, c := range []struct{ name, text, line string }{
		{"not YAML", "apiVersion: v1\nkind: Service\n  metadata: [", "web.yaml"},
		{"a wrong type", strings.Replace(service("web", clusterIP, podB), "port: 80}", "port: eighty}", 1), "spec.ports"},
		{"a port too high", strings.Replace(service("web", clusterIP, podB), "port: 80}", "port: 70000}", 1), "70000"},
		{"a duplicate key", "apiVersion: v1\napiVersion: v1\n" + service("web", clusterIP, podB), "apiVersion"},
	} {
		before := len(d.log())
		s.write("web.yaml", c.text)
		eventually(t, c.name+": a line about it", func() bool {
			return strings.Contains(d.log()[before:], c.line) && strings.Contains(d.log()[before:], "web.yaml")
		})
		if !s.answers(secondIP, podB)() {
			t.Errorf("%s: the other Service does not answer", c.name)
		}
	}
	s.write("web.yaml", service("web", clusterIP, podB))
	eventually(t, "the mended Service", s.answers(clusterIP, podB))
}

// TestFamilies runs on a node without IPv6, and serves both where there are both.
func TestFamilies(t *testing.T) {
	for _, c := range []struct {
		name    string
		disable string
		tables  string
		v6      bool
	}{
		{"both", "0", "table ip sluice\ntable ip6 sluice", true},
		{"without IPv6", "1", "table ip sluice", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			if err := s.lab.Node().Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte(c.disable), 0o644)
			}); err != nil {
				t.Fatal(err)
			}
			s.write("web.yaml", service("web", clusterIP, podA))
			s.write("six.yaml", service("six", clusterV6, podV6))
			s.start(nil)
			eventually(t, "the IPv4 Service", s.answers(clusterIP, podA))
			if c.v6 {
				eventually(t, "the IPv6 Service", s.answers(clusterV6, podV6))
			}
			if got := s.tables(); got != c.tables {
				t.Errorf("the kernel has %q, want %q", got, c.tables)
			}
		})
	}
}

// tables lists the tables of the node.
func (s *site) tables() string {
	s.t.Helper()
	var out []byte
	if err := s.lab.Node().Do(func() (err error) {
		out, err = exec.Command("nft", "list", "tables").Output()
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestWithoutPermission says what is missing, exits with 1 and changes nothing.
func TestWithoutPermission(t *testing.T) {
	s := newSite(t)
	s.write("web.yaml", service("web", clusterIP, podA))
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(s.dir), s.dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := s.start(func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	if code := d.wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSpace(d.log()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "Error: ") || !strings.Contains(last, "NET_ADMIN") {
		t.Errorf("the last line is %q", last)
	}
	if got := s.tables(); got != "" {
		t.Errorf("the kernel has %q", got)
	}
}
