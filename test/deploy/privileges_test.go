package deploy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

func ptr[T any](v T) *T { return &v }

// TestPrivileges wants exactly what docs/replace-kube-proxy.md says.
func TestPrivileges(t *testing.T) {
	for name, r := range releases(t) {
		t.Run("nftables/"+name, func(t *testing.T) {
			checkPrivileges(t, r, "NET_ADMIN")
			if len(r.pod().Volumes) != 2 {
				t.Errorf("volumes %+v; want the ConfigMap and the folder of the socket alone", r.pod().Volumes)
			}
		})
	}
	for name, r := range in(t, "ebpf") {
		t.Run("ebpf/"+name, func(t *testing.T) {
			checkPrivileges(t, r, "NET_ADMIN", "BPF", "PERFMON")
			checkSocketPaths(t, r)
		})
	}
	all := in(t, "iptables")
	all["helm, mode unset"] = helm(t, set(t, "config.mode="))
	for name, r := range all {
		t.Run("iptables/"+name, func(t *testing.T) {
			checkPrivileges(t, r, "NET_ADMIN", "NET_RAW")
			checkHostPaths(t, r)
		})
	}
}

func checkPrivileges(t *testing.T, r *release, capabilities ...corev1.Capability) {
	t.Helper()
	daemon := &corev1.SecurityContext{
		Privileged:               ptr(false),
		RunAsUser:                ptr(int64(0)),
		AllowPrivilegeEscalation: ptr(false),
		ReadOnlyRootFilesystem:   ptr(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
	}
	if diff := cmp.Diff(daemon, r.daemon().SecurityContext); diff != "" {
		t.Errorf("the daemon (-want +got):\n%s", diff)
	}
	init := &corev1.SecurityContext{
		Privileged: ptr(true), RunAsUser: ptr(int64(0)), ReadOnlyRootFilesystem: ptr(true),
	}
	if diff := cmp.Diff(init, r.initial().SecurityContext); diff != "" {
		t.Errorf("the init container (-want +got):\n%s", diff)
	}
	small := resource.MustParse("1Mi")
	socket := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &small}
	if diff := cmp.Diff(socket, r.volume("run").EmptyDir); diff != "" {
		t.Errorf("where the status socket is (-want +got):\n%s", diff)
	}
	pod := r.pod()
	want := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if diff := cmp.Diff(want, pod.SecurityContext); diff != "" {
		t.Errorf("the pod (-want +got):\n%s", diff)
	}
	if !pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Errorf("host network %t, processes %t, IPC %t; want the network alone", pod.HostNetwork, pod.HostPID, pod.HostIPC)
	}
}

// checkHostPaths wants what the programs of iptables need of the host.
func checkHostPaths(t *testing.T, r *release) {
	t.Helper()
	for name, want := range map[string]*corev1.HostPathVolumeSource{
		"xtables-lock": {Path: lockFile, Type: ptr(corev1.HostPathFileOrCreate)}, "lib-modules": {Path: "/lib/modules"},
	} {
		if diff := cmp.Diff(want, r.volume(name).HostPath); diff != "" {
			t.Errorf("volume %s (-want +got):\n%s", name, diff)
		}
	}
	lock := &corev1.VolumeMount{Name: "xtables-lock", MountPath: lockFile}
	modules := &corev1.VolumeMount{Name: "lib-modules", MountPath: "/lib/modules", ReadOnly: true}
	if !cmp.Equal(mount(r.initial(), lock.Name), lock) || !cmp.Equal(mount(r.daemon(), lock.Name), lock) {
		t.Error("the lock is not the host's")
	}
	if !cmp.Equal(mount(r.initial(), modules.Name), modules) || mount(r.daemon(), modules.Name) != nil {
		t.Error("modules are not the init container's alone")
	}
}

// checkSocketPaths wants what programs at sockets need of the host, for the daemon alone.
func checkSocketPaths(t *testing.T, r *release) {
	t.Helper()
	inside := corev1.MountPropagationHostToContainer
	for name, want := range map[string]corev1.VolumeMount{
		"/sys/fs/bpf":    {Name: "bpf", MountPath: "/host/bpf", MountPropagation: &inside},
		"/sys/fs/cgroup": {Name: "cgroup", MountPath: "/host/cgroup", MountPropagation: &inside, ReadOnly: true},
	} {
		host := &corev1.HostPathVolumeSource{Path: name, Type: ptr(corev1.HostPathDirectory)}
		if diff := cmp.Diff(host, r.volume(want.Name).HostPath); diff != "" {
			t.Errorf("volume %s (-want +got):\n%s", want.Name, diff)
		}
		if diff := cmp.Diff(&want, mount(r.daemon(), want.Name)); diff != "" || mount(r.initial(), want.Name) != nil {
			t.Errorf("mount %s is not the daemon's alone (-want +got):\n%s", want.Name, diff)
		}
	}
	if n := len(r.pod().Volumes); n != 4 {
		t.Errorf("%d volumes; want these, the ConfigMap and the folder of the socket", n)
	}
	unified := helm(t, set(t, "config.mode=ebpf", "ebpf.cgroupRoot=/sys/fs/cgroup/unified"))
	if got := unified.volume("cgroup").HostPath.Path; got != "/sys/fs/cgroup/unified" {
		t.Errorf("the cgroup is %s; want what the value says", got)
	}
}

// lockFile is what all programs of iptables on a host agree on.
const lockFile = "/run/xtables.lock"

// TestPrivilegesSuffice runs the daemon in its image, with the container's flags,
// configuration and privileges, until the kernel has its rules, a connection goes
// through a Service and the kubelet's probe is content; and without each capability, to see that its lack is noticed and
// that nothing is left half done.
func TestPrivilegesSuffice(t *testing.T) {
	tests := []struct {
		name   string
		r      *release
		before []string // what is on the host already
		rules  []string // lists ours
		lacks  bool     // without a capability it ends, and says which
	}{
		{"nftables", releases(t)["kustomize"], nil, []string{"nft", "list", "table", "ip", "sluice"}, true},
		{"ebpf", in(t, "ebpf")["helm"], nil, []string{"nft", "list", "table", "ip", "sluice"}, true},
		{"ebpf, kustomize", in(t, "ebpf")["kustomize"], nil, []string{"nft", "list", "table", "ip", "sluice"}, false},
		{"iptables", in(t, "iptables")["helm"], nil, []string{"iptables-nft-save"}, false},
		{
			"iptables-legacy", in(t, "iptables")["helm"],
			[]string{"iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"},
			[]string{"iptables-legacy-save"},
			false,
		},
	}
	for _, tt := range tests {
		has := tt.r.daemon().SecurityContext.Capabilities.Add
		t.Run(tt.name, func(t *testing.T) {
			l, daemon := startConfined(t, tt.r, has, tt.before)
			serves := server(t, l)
			daemon.await(t, func() bool {
				return hasRules(l.Node(), tt.rules) && answers(t, l.Node(), tt.r.daemon()) && daemon.tellsStatus(t) && serves()
			})
			last := filepath.Join(daemon.bpf, "sluice", "connect6")
			if pinned := daemon.pinned(t); daemon.bpf != "" && !slices.Contains(pinned, last) {
				t.Errorf("attached are %v; want all", pinned)
			}
		})
		for i, c := range has {
			if !tt.lacks {
				break
			}
			t.Run(tt.name+" without "+string(c), func(t *testing.T) {
				l, daemon := startConfined(t, tt.r, slices.Delete(slices.Clone(has), i, i+1), tt.before)
				daemon.await(t, func() bool {
					select {
					case <-daemon.done:
						return regexp.MustCompile(fmt.Sprintf(`(?m)^Error: .*(capability %s |CAP_%s is missing)`, c, c)).MatchString(daemon.text())
					default:
						return false
					}
				})
				if hasRules(l.Node(), tt.rules) {
					t.Error("there are rules all the same")
				}
				if left := daemon.pinned(t); len(left) > 0 {
					t.Errorf("there is %v all the same", left)
				}
			})
		}
	}
}

// hasRules asks a program, as an operator would.
func hasRules(node *lab.Host, list []string) bool {
	var out bytes.Buffer
	cmd := exec.Command(list[0], list[1:]...)
	cmd.Stdout = &out
	if err := node.Start(cmd); err != nil {
		return false
	}
	return cmd.Wait() == nil && strings.Contains(out.String(), "10.96.0.30") // Service gate of the examples
}

// answers asks the node's address, as the kubelet does.
func answers(t *testing.T, node *lab.Host, c *corev1.Container) bool {
	t.Helper()
	_, ok := fetch(t, node, netip.AddrPortFrom(node.Addrs[0], uint16(c.Ports[0].HostPort)), c.ReadinessProbe.HTTPGet.Path)
	return ok
}

// fetch asks a daemon from its node, and reports whether all is well.
func fetch(t *testing.T, node *lab.Host, from netip.AddrPort, path string) (string, bool) {
	t.Helper()
	conn, err := node.Dial(t.Context(), proxy.TCP, netip.Addr{}, from)
	if err != nil {
		return "", false
	}
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, "http://"+from.String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := request.Write(conn); err != nil {
		return "", false
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return "", false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err == nil && response.StatusCode == http.StatusOK
}

// tellsStatus asks at the socket within the daemon's own file system.
func (p *process) tellsStatus(t *testing.T) bool {
	t.Helper()
	client := statusapi.AtSocket(filepath.Join("/proc", strconv.Itoa(p.pid), "root", statusapi.DefaultSocket))
	defer client.CloseIdle()
	var node statusapi.Node
	return client.Get(t.Context(), statusapi.NodePath, nil, &node) == nil && node.Name == "node-1"
}

// process is a daemon and what it says.
type process struct {
	pid  int
	bpf  string // its BPF file system, if it has one
	mu   sync.Mutex
	said bytes.Buffer
	done chan struct{}
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// pinned returns what the daemon keeps in its BPF file system.
func (p *process) pinned(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(p.bpf, "sluice", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// await polls until a condition holds.
func (p *process) await(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("it did not come about; the daemon says:\n%s", p.text())
}

// startConfined starts the daemon of a release on the examples, in its image and in
// a network of its own.
func startConfined(t *testing.T, r *release, capabilities []corev1.Capability, before []string) (*lab.Lab, *process) {
	t.Helper()
	lab.Require(t)
	p := &process{}
	host := map[string]string{"xtables-lock": lockOf(t)}
	if mount(r.daemon(), "bpf") != nil {
		places := p.addSockets(t)
		host["cgroup"], host["bpf"] = places[0], places[1]
	}
	l, err := lab.New(lab.Config{Cgroup: host["cgroup"]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	examples, err := filepath.Abs(root + "/examples")
	if err != nil {
		t.Fatal(err)
	}
	if len(before) > 0 {
		on(t, l.Node(), before[0], before[1:]...)
	}
	p.start(t, l.Node(), "unshare", container(t, r, r.daemon(), capabilities, host, examples)...)
	return l, p
}

// server adds the pods of the examples' Service web, and returns whether a client
// reaches one of them by its ClusterIP.
func server(t *testing.T, l *lab.Lab) func() bool {
	t.Helper()
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 244, 0, byte(11 + i)})
		pod, err := l.AddPod("web", addr)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := pod.Listen(proxy.TCP, netip.AddrPortFrom(addr, 8080))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	source := netip.MustParseAddr("10.244.0.2")
	client, err := l.AddPod("client", source)
	if err != nil {
		t.Fatal(err)
	}
	flow := traffic.Flow{Protocol: proxy.TCP, Src: source, Dst: netip.MustParseAddrPort("10.96.0.10:80"), Patience: 300 * time.Millisecond}
	return func() bool {
		seen, err := client.Probe(t.Context(), []traffic.Flow{flow})
		if err != nil {
			t.Fatal(err)
		}
		return seen[0].Fate == traffic.Answered && seen[0].By.Port() == 8080
	}
}

// start starts a program on a node, which is told to stop when the test ends.
func (p *process) start(t *testing.T, node *lab.Host, program string, args ...string) {
	t.Helper()
	p.done = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr = p, p
	if err := node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // The test looks at what it did.
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
	})
}

// addSockets makes a cgroup for the daemon's node, and a BPF file system.
func (p *process) addSockets(t *testing.T) (places [2]string) {
	t.Helper()
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroups.Close(); err != nil {
			t.Error(err)
		}
	})
	cgroup, err := cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	if p.bpf, err = cgroups.MountBPF(); err != nil {
		t.Fatal(err)
	}
	return [2]string{cgroup, p.bpf}
}

// mounted writes the ConfigMap's files to a folder, as a volume would hold them.
func mounted(t *testing.T, r *release) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range r.configMap.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// arguments returns a container's arguments with the volume's path replaced and
// the one variable filled in.
func arguments(c *corev1.Container, dir string) []string {
	var out []string
	fill := strings.NewReplacer(mount(c, "config").MountPath, dir, "$(NODE_NAME)", "node-1")
	for _, a := range c.Args {
		out = append(out, fill.Replace(a))
	}
	return out
}
