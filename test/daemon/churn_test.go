package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/statusapi"
)

// churn is how many histories each mode goes through.
var churn = flag.Int("churn", 8, "play so many random `HISTORIES` in each mode, of up to 10 steps each")

// TestChurn follows random histories with the whole daemon, by way of a folder.
func TestChurn(t *testing.T) {
	for name, value := range map[string]string{"checks": fmt.Sprint(*churn), "nofailfile": "true", "shrinktime": "2m"} {
		if err := flag.Set("rapid."+name, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []string{"nftables", "iptables", "userspace", "ebpf"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			d := conformance.Dataplane{
				Mode: settingsOf(mode),
				Daemon: func(node *lab.Host) (conformance.Daemon, error) {
					return newFolder(t, mode, node)
				},
			}
			if mode == "ebpf" {
				d.Sockets = &conformance.Sockets{}
			}
			conformance.RunChurn(t, d, 10, 6)
		})
	}
}

// settingsOf is the mode whose default settings a mode has.
func settingsOf(mode string) string {
	if mode == "iptables" {
		return mode
	}
	return "nftables"
}

// folder is a daemon that reads a folder of manifests.
type folder struct {
	t       *testing.T
	mode    string
	node    *lab.Host
	dir     string // of manifests
	socket  string
	cgroup  []string // where mode ebpf meets sockets
	places  []string // and where it keeps its maps, which a rendering must know
	running *process
	flags   []string // of the one that runs
	there   map[string]string
	fence   int
}

func newFolder(t *testing.T, mode string, node *lab.Host) (*folder, error) {
	short, err := os.MkdirTemp("", "s") // the path of a socket is short
	f := &folder{t: t, mode: mode, node: node, dir: t.TempDir(), socket: filepath.Join(short, "s"), there: map[string]string{}}
	if mode == "ebpf" && err == nil {
		bpf := t.TempDir()
		err = unix.Mount("bpf", bpf, "bpf", 0, "")
		t.Cleanup(func() {
			if err := unix.Unmount(bpf, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		f.cgroup, f.places = []string{"--cgroup-root", node.Cgroup}, []string{"--bpf-root", filepath.Join(bpf, "sluice")}
	}
	return f, err
}

// Write writes a file for each object that is new or has changed, and removes the others.
func (f *folder) Write(w *conformance.World) error {
	want := map[string]string{}
	for _, o := range w.Objects() {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		want[strings.ToLower(fmt.Sprintf("%T-%s-%s.yaml", o, o.GetNamespace(), o.GetName()))[1:]] = string(text)
	}
	for name := range f.there {
		if _, ok := want[name]; !ok {
			if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
				return err
			}
		}
	}
	for name, text := range want {
		if f.there[name] != text {
			if err := f.put(name, text); err != nil {
				return err
			}
		}
	}
	f.there = want
	return nil
}

// put writes a file at once.
func (f *folder) put(name, text string) error {
	tmp := filepath.Join(f.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(f.dir, name))
}

// Settle waits until the daemon has the folder in force, and compares.
func (f *folder) Settle(ctx context.Context, w *conformance.World) error {
	flags := slices.Concat([]string{"--manifests", f.dir, "--proxy-mode", f.mode}, f.places, w.Config.Flags(settingsOf(f.mode)))
	if f.running != nil && strings.Join(flags, " ") != strings.Join(f.flags, " ") {
		if code := f.running.end(syscall.SIGTERM); code != 0 {
			return fmt.Errorf("exit code %d after SIGTERM", code)
		}
		f.running = nil
	}
	if f.running == nil {
		p, err := start(f.t, f.node, nil, slices.Concat(flags, f.cgroup, []string{"-v", "2", "--status-socket", f.socket})...)
		if err != nil {
			return err
		}
		f.running, f.flags = p, flags
	}
	// One reading of the folder may have begun before the last file was written. The
	// next has not.
	err := f.passFence(ctx, len(w.Services)+1)
	if err == nil {
		err = f.passFence(ctx, len(w.Services)+1)
	}
	if err == nil {
		err = f.compare(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w\nthe daemon's log:\n%s", err, f.running.log())
	}
	return nil
}

// passFence changes a Service and waits until it, and everything else, is in force. A
// file that is missing is believed to be gone after a while only, so the number of
// Services must be right, too.
func (f *folder) passFence(ctx context.Context, services int) error {
	f.fence = f.fence%60000 + 1
	s := &v1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "fence", Name: "fence"},
		Spec: v1.ServiceSpec{ClusterIP: "172.30.254.254", Ports: []v1.ServicePort{{Port: int32(f.fence)}}},
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = f.put("fence.yaml", string(text))
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f.passed(ctx, services)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("what was written is not in force: %w", err)
		case <-f.running.done:
			return errors.New("the daemon has ended by itself")
		case <-tick.C:
		}
	}
}

// passed says what is not yet in force.
func (f *folder) passed(ctx context.Context, services int) error {
	c := statusapi.AtSocket(f.socket)
	var s statusapi.Service
	if err := c.Get(ctx, statusapi.ServicesPath+"/fence/fence", nil, &s); err != nil {
		return err
	}
	if len(s.Rows) != 1 || len(s.Rows[0].Frontends) != 1 || s.Rows[0].Frontends[0].Address != fmt.Sprintf("172.30.254.254:%d", f.fence) {
		return fmt.Errorf("not yet port %d: %+v", f.fence, s.Rows)
	}
	var n statusapi.Node
	if err := c.Get(ctx, statusapi.NodePath, nil, &n); err != nil {
		return err
	}
	if !n.InForce() || n.Counts.Services != services {
		return fmt.Errorf("not in force, of %d Services: %+v", services, n)
	}
	return nil
}

// compare has a new daemon's plan be compared with what the kernel has. Chains
// and elements may be listed twice or not at all while they change.
func (f *folder) compare(ctx context.Context) error {
	path, err := binary()
	if err != nil {
		return err
	}
	var text strings.Builder
	for range 3 {
		text.Reset()
		cmd := exec.CommandContext(ctx, path, append([]string{"render", "--diff"}, f.flags...)...)
		cmd.Stdout, cmd.Stderr = &text, &text
		if err = f.node.Start(cmd); err != nil {
			return err
		}
		if err = cmd.Wait(); err == nil || sameButOrder(text.String()) {
			return nil
		}
	}
	return fmt.Errorf("the kernel is not as a new daemon would make it: %w\n%s", err, text.String())
}

// order is what says at which place an endpoint is among those of its Service, in
// rules of iptables, keys of nftables and entries of maps. A restart puts endpoints in
// order.
var order = regexp.MustCompile(` -m statistic --mode random --probability [0-9.]+| \. f[0-9a-f]{3}:[0-9a-f]+| [0-9]+:`)

// sameButOrder reports whether what is there and what is missing is the same, but
// for its order.
func sameButOrder(diff string) bool {
	n := map[string]int{}
	for line := range strings.Lines(diff) {
		if rule, ok := strings.CutPrefix(line, "+ "); ok {
			n[order.ReplaceAllString(rule, "")]++
		} else if rule, ok := strings.CutPrefix(line, "- "); ok {
			n[order.ReplaceAllString(rule, "")]--
		}
	}
	for _, left := range n {
		if left != 0 {
			return false
		}
	}
	return len(n) > 0
}

// Kill ends the daemon.
func (f *folder) Kill() error {
	if f.running != nil {
		f.running.end(syscall.SIGKILL)
		f.running = nil
	}
	return nil
}

// Close ends the daemon, too.
func (f *folder) Close() error { return errors.Join(f.Kill(), os.RemoveAll(filepath.Dir(f.socket))) }
