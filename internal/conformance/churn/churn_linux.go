package churn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/subprocess"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// Modes are the modes that run histories.
var Modes = []string{"nftables", "iptables", "userspace", "ebpf"}

// Source provides objects to a daemon.
type Source interface {
	// Write replaces all objects with those of a world, in their order, and returns the world as
	// the source has it.
	Write(ctx context.Context, w *conformance.World) (*conformance.World, error)

	// Flags returns the flags that make a daemon read from the source.
	Flags() []string

	// Folder returns a directory with manifests of all current objects.
	Folder(ctx context.Context) (string, error)

	// Faults returns the faults that can be injected into the source.
	Faults() []conformance.Fault

	Close() error
}

// Settings describe what is tested.
type Settings struct {
	Mode    string
	Program string           // path of the daemon
	Objects string           // describes the source in results
	Cgroups *traffic.Cgroups // that the process is in; nil means none
	Open    func(node *lab.Host) (Source, error)
}

// SetHistories sets how many histories each mode runs. They are flags of rapid, so a test calls
// this once, before it starts parallel subtests. Histories are the same in each run, unless
// -rapid.seed selects others, as make soak does.
func SetHistories(t *testing.T, histories int) {
	settings := map[string]string{"checks": fmt.Sprint(histories), "nofailfile": "true", "shrinktime": "2m"}
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		settings["seed"] = "1"
	}
	for name, value := range settings {
		if err := flag.Set("rapid."+name, value); err != nil {
			t.Fatal(err)
		}
	}
}

// Run runs histories of up to 10 steps in a mode, and records how long it took after each fault
// until everything was in force.
func Run(t *testing.T, s Settings) {
	c := conformance.RunChurn(t, s.dataplane(t), 10, 6)
	for _, fault := range slices.Sorted(maps.Keys(c.Settled)) {
		reliability.Record(t, reliability.Result{
			Fault: fault + " while objects change at random (" + s.Objects + ")", Mode: s.Mode,
			Tried: len(c.Settled[fault]), Repairs: c.Settled[fault],
			Note: fmt.Sprintf("in %d steps, after each of which the kernel equalled a fresh rendering; %d flows had the oracle's result", c.Steps, c.Flows),
		})
	}
}

// RunThemes runs the packet table in a mode, by theme.
func RunThemes(t *testing.T, s Settings, told func(theme string, cases int)) {
	conformance.RunThemes(t, s.dataplane(t), told)
}

// dataplane returns the daemon as a Dataplane for package conformance.
func (s Settings) dataplane(t *testing.T) conformance.Dataplane {
	d := conformance.Dataplane{
		Mode:   defaultsOf(s.Mode),
		Daemon: func(node *lab.Host) (conformance.Daemon, error) { return open(t, s, node) },
	}
	switch s.Mode {
	case "ebpf":
		d.Sockets = &conformance.Sockets{Cgroups: s.Cgroups}
	case "userspace":
		d.Refuses = map[proxy.Protocol]string{proxy.SCTP: "mode userspace does not relay SCTP"}
		d.ForgetsClients = true
	}
	return d
}

// defaultsOf returns the mode whose default settings a mode uses.
func defaultsOf(mode string) string {
	if mode == "iptables" {
		return mode
	}
	return "nftables"
}

// daemon is a daemon on a node and its source of objects.
type daemon struct {
	Source
	mode     string
	program  string
	node     *lab.Host
	dir      string              // of its socket; short, because the path of a Unix socket is limited to 108 bytes
	bpfFlags []string            // where mode ebpf keeps its maps; render needs them too
	written  *conformance.World  // the last world passed to Write
	process  *subprocess.Process // nil if none is running
	flags    []string            // of the running process, without those of its source
	fence    int32
}

func open(t *testing.T, s Settings, node *lab.Host) (*daemon, error) {
	source, err := s.Open(node)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "s")
	d := &daemon{Source: source, mode: s.Mode, program: s.Program, node: node, dir: dir}
	if s.Mode == "ebpf" && err == nil {
		bpf := t.TempDir()
		err = unix.Mount("bpf", bpf, "bpf", 0, "")
		t.Cleanup(func() {
			if err := unix.Unmount(bpf, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		d.bpfFlags = []string{"--bpf-root", filepath.Join(bpf, "sluice")}
	}
	return d, err
}

func (d *daemon) Write(ctx context.Context, w *conformance.World) (*conformance.World, error) {
	d.written = w
	return d.Source.Write(ctx, w)
}

// Settle waits until the daemon has everything in force, and compares the kernel. The daemon has
// seen a world when it has seen a fence object written after it. The fence is written twice,
// because a source that is read as a whole may be read while the first one is written.
func (d *daemon) Settle(ctx context.Context, w *conformance.World) error {
	flags := slices.Concat([]string{"--proxy-mode", d.mode}, d.bpfFlags, w.Config.Flags(defaultsOf(d.mode)))
	err := d.start(flags)
	for range 2 {
		if err == nil {
			err = d.writeFence(ctx)
		}
	}
	if err == nil {
		err = d.compare(ctx)
	}
	if err != nil && d.process != nil {
		return fmt.Errorf("%w\nthe daemon's log:\n%s", err, lastLines(d.process.Log()))
	}
	return err
}

// start starts a daemon, unless one with these flags is running.
func (d *daemon) start(flags []string) (err error) {
	if d.process != nil && slices.Equal(flags, d.flags) {
		return nil
	}
	if d.process != nil {
		if code := d.process.End(unix.SIGTERM); code != 0 {
			return fmt.Errorf("stop the daemon: exit code %d after SIGTERM; its log:\n%s", code, lastLines(d.process.Log()))
		}
	}
	args := slices.Concat(d.Flags(), flags, []string{"-v", "2", "--status-socket", d.socket()})
	if d.mode == "ebpf" {
		args = append(args, "--cgroup-root", d.node.Cgroup)
	}
	d.flags = flags
	cmd := exec.Command(d.program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	d.process, err = subprocess.Start(cmd, d.node.Start)
	return err
}

func lastLines(log string) string {
	lines := strings.SplitAfter(log, "\n")
	return strings.Join(lines[max(0, len(lines)-50):], "")
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "s") }

// writeFence writes a new fence and waits until it, and everything else, is in force.
func (d *daemon) writeFence(ctx context.Context) error {
	d.fence = d.fence%200 + 1
	w := *d.written
	w.Services, w.Slices = append(slices.Clip(w.Services), d.fenceService()), append(slices.Clip(w.Slices), d.fenceSlice())
	there, err := d.Source.Write(ctx, &w)
	if err != nil {
		return err
	}
	return d.await(ctx, func() error { return d.checkFence(ctx, there) })
}

// fenceService and fenceSlice return the objects of the fence, which differ with each fence.
func (d *daemon) fenceService() *v1.Service {
	s := &v1.Service{Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeClusterIP, ClusterIP: "172.30.9.254", ClusterIPs: []string{"172.30.9.254"},
		IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, Ports: []v1.ServicePort{{Port: d.fence, Protocol: v1.ProtocolTCP}},
	}}
	s.Namespace, s.Name = "random", "zz-fence"
	return s
}

func (d *daemon) fenceSlice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(d.fence)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.250.1.1"}}},
	}
	s.Namespace, s.Name, s.Labels = "random", "zz-fence", map[string]string{discoveryv1.LabelServiceName: "zz-fence"}
	return s
}

// checkFence returns an error until the fence and the world are in force. A daemon may believe in
// the deletion of an object only after a while, so the number of Services must match too.
func (d *daemon) checkFence(ctx context.Context, w *conformance.World) error {
	c := statusapi.AtSocket(d.socket())
	var s statusapi.Service
	if err := c.Get(ctx, statusapi.ServicesPath+"/random/zz-fence", nil, &s); err != nil {
		return err
	}
	if len(s.Rows) != 1 || len(s.Rows[0].Frontends) != 1 || s.Rows[0].Frontends[0].Address != fmt.Sprintf("172.30.9.254:%d", d.fence) ||
		len(s.Rows[0].Endpoints) != 1 || s.Rows[0].Endpoints[0].Address != fmt.Sprintf("10.250.1.1:%d", d.fence) {
		return fmt.Errorf("fence %d is not in force: %+v", d.fence, s.Rows)
	}
	var n statusapi.Node
	if err := c.Get(ctx, statusapi.NodePath, nil, &n); err != nil {
		return err
	}
	for _, a := range []string{"172.30.200.1", "fd00:172:30::50"} { // no Service has them, but some Service CIDRs contain them
		var e statusapi.Explanation
		to := netip.AddrPortFrom(netip.MustParseAddr(a), 9)
		if err := c.Get(ctx, statusapi.ExplainPath, url.Values{"to": {to.String()}}, &e); err != nil {
			return err
		}
		if ranged := e.Verdict != "untouched"; ranged != w.InServiceCIDRs(to.Addr()) {
			return fmt.Errorf("the Service CIDRs %v are not in force: a packet to %v is %s", w.ServiceCIDRs(), to, e.Verdict)
		}
	}
	if !n.InForce() || n.Counts.Services != w.Served() || n.Zone != w.NodeLabels[v1.LabelTopologyZone] {
		return fmt.Errorf("%d Services in zone %q are not in force: %+v", w.Served(), w.NodeLabels[v1.LabelTopologyZone], n)
	}
	return nil
}

// settleTimeout is how long a daemon may take until everything is in force. One that has lost its
// API server retries after up to a minute.
const settleTimeout = 90 * time.Second

func (d *daemon) await(ctx context.Context, wrong func() error) error {
	ctx, cancel := context.WithTimeout(ctx, traffic.Scaled(settleTimeout))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := wrong()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("what was written is not in force: %w", err)
		case <-d.process.Done:
			return errors.New("the daemon has exited")
		case <-tick.C:
		}
	}
}

func (d *daemon) Kill() error {
	if d.process != nil {
		d.process.End(unix.SIGKILL)
		d.process = nil
	}
	return nil
}

func (d *daemon) Close() error {
	return errors.Join(d.Kill(), d.Source.Close(), os.RemoveAll(d.dir))
}
