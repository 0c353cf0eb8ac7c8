package deploy

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

func ptr[T any](v T) *T { return &v }

// TestPrivileges wants exactly what docs/replace-kube-proxy.md says.
func TestPrivileges(t *testing.T) {
	for name, r := range releases(t) {
		t.Run("nftables/"+name, func(t *testing.T) {
			checkPrivileges(t, r, "NET_ADMIN")
			if len(r.pod().Volumes) != 1 {
				t.Errorf("volumes %+v; want the ConfigMap alone", r.pod().Volumes)
			}
		})
	}
	all := withIPTables(t)
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

// lockFile is what all programs of iptables on a host agree on.
const lockFile = "/run/xtables.lock"

// confined is how a container runtime starts what is not privileged: nothing can
// be written but a lock that is mounted, and capabilities are bounded.
const confined = `set -e
mount --make-rprivate /
mount -t tmpfs none /run
if [ -n "$2" ]; then
	touch "$2"
	mount --bind "$2" "$2"
fi
mount -o remount,bind,ro /run
mount -o remount,bind,ro /
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
bound=$1
shift 2
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$bound" "$@"
`

// bounding returns what setpriv is told of capabilities.
func bounding(capabilities []corev1.Capability) string {
	bound := "-all"
	for _, c := range capabilities {
		bound += ",+" + strings.ToLower(string(c))
	}
	return bound
}

// TestPrivilegesSuffice runs the daemon with the container's flags,
// configuration and privileges until the kernel has its rules and the kubelet's
// probe is content; and without the last capability, to see that its lack would
// be noticed.
func TestPrivilegesSuffice(t *testing.T) {
	tests := []struct {
		name   string
		r      *release
		before []string // what is on the host already
		rules  []string // lists ours
		lack   string   // what is said without the last capability
	}{
		{"nftables", releases(t)["kustomize"], nil, []string{"nft", "list", "table", "ip", "sluice"}, "NET_ADMIN"},
		{"iptables", withIPTables(t)["helm"], nil, []string{"iptables-nft-save"}, ""},
		{
			"iptables-legacy", withIPTables(t)["helm"],
			[]string{"iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"},
			[]string{"iptables-legacy-save"},
			"",
		},
	}
	for _, tt := range tests {
		has := tt.r.daemon().SecurityContext.Capabilities.Add
		t.Run(tt.name, func(t *testing.T) {
			node, daemon := startConfined(t, tt.r, bounding(has), tt.before)
			daemon.await(t, func() bool { return hasRules(node, tt.rules) && answers(t, node, tt.r.daemon()) })
		})
		if tt.lack == "" {
			continue
		}
		t.Run(tt.name+" without "+string(has[len(has)-1]), func(t *testing.T) {
			node, daemon := startConfined(t, tt.r, bounding(has[:len(has)-1]), tt.before)
			daemon.await(t, func() bool {
				select {
				case <-daemon.done:
					return strings.Contains(daemon.text(), tt.lack)
				default:
					return false
				}
			})
			if hasRules(node, tt.rules) {
				t.Error("there are rules all the same")
			}
		})
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
	to := netip.AddrPortFrom(node.Addrs[0], uint16(c.Ports[0].HostPort))
	conn, err := node.Dial(t.Context(), proxy.TCP, netip.Addr{}, to)
	if err != nil {
		return false
	}
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, "http://"+to.String()+c.ReadinessProbe.HTTPGet.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := request.Write(conn); err != nil {
		return false
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// process is a daemon and what it says.
type process struct {
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

// startConfined starts the daemon of a release on the examples, in a network of
// its own.
func startConfined(t *testing.T, r *release, bound string, before []string) (*lab.Host, *process) {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
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
	lock := ""
	if m := mount(r.daemon(), "xtables-lock"); m != nil {
		lock = m.MountPath
	}
	args := []string{"--mount", "sh", "-c", confined, "sh", bound, lock, image(t)}
	args = append(args, arguments(r.daemon(), mounted(t, r))...)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "unshare", append(args, "--manifests="+examples)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	p := &process{done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if err := l.Node().Start(cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // The test looks at what it did.
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
	})
	return l.Node(), p
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
