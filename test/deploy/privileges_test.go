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
		t.Run(name, func(t *testing.T) {
			daemon := &corev1.SecurityContext{
				Privileged:               ptr(false),
				RunAsUser:                ptr(int64(0)),
				AllowPrivilegeEscalation: ptr(false),
				ReadOnlyRootFilesystem:   ptr(true),
				Capabilities: &corev1.Capabilities{
					Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"},
				},
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
			pod := r.daemonSet.Spec.Template.Spec
			want := &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			if diff := cmp.Diff(want, pod.SecurityContext); diff != "" {
				t.Errorf("the pod (-want +got):\n%s", diff)
			}
			if !pod.HostNetwork || pod.HostPID || pod.HostIPC {
				t.Errorf("host network %t, processes %t, IPC %t; want the network alone", pod.HostNetwork, pod.HostPID, pod.HostIPC)
			}
		})
	}
}

// confined is how a container runtime starts what is not privileged: nothing
// can be written, /proc/sys included, and capabilities are bounded.
const confined = `set -e
mount --make-rprivate /
mount -o remount,bind,ro /
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
bound=$1
shift
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$bound" "$@"
`

// TestPrivilegesSuffice runs the daemon with the container's flags,
// configuration and privileges until the kernel has its rules and the kubelet's
// probe is content; and without the capabilities, to see that their lack would
// be noticed.
func TestPrivilegesSuffice(t *testing.T) {
	r := read(t, kustomize(t, base))
	bound := "-all"
	for _, c := range r.daemon().SecurityContext.Capabilities.Add {
		bound += ",+" + strings.ToLower(string(c))
	}
	t.Run("with them", func(t *testing.T) {
		node, daemon := startConfined(t, r, bound)
		daemon.await(t, func() bool { return hasRules(node) && answers(t, node, r.daemon()) })
	})
	t.Run("without them", func(t *testing.T) {
		node, daemon := startConfined(t, r, "-all")
		daemon.await(t, func() bool {
			select {
			case <-daemon.done:
				return strings.Contains(daemon.text(), "NET_ADMIN")
			default:
				return false
			}
		})
		if hasRules(node) {
			t.Error("there are rules all the same")
		}
	})
}

// hasRules asks the nft program, as an operator would.
func hasRules(node *lab.Host) bool {
	var out bytes.Buffer
	cmd := exec.Command("nft", "list", "table", "ip", "sluice")
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
func startConfined(t *testing.T, r *release, bound string) (*lab.Host, *process) {
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
	args := []string{"--mount", "sh", "-c", confined, "sh", bound, image(t)}
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
	fill := strings.NewReplacer(c.VolumeMounts[0].MountPath, dir, "$(NODE_NAME)", "node-1")
	for _, a := range c.Args {
		out = append(out, fill.Replace(a))
	}
	return out
}
