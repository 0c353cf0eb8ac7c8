package ebpf_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// connects makes a connection from the client, and returns who answered and whether it was
// translated at the socket.
func (h *host) connects(to netip.AddrPort) (by netip.AddrPort, atSocket bool) {
	h.Helper()
	s := h.socket(h.client, proxy.TCP, to)
	defer s.close()
	by, _ = s.receive()
	return by, s.translated()
}

// wantRules checks that connections work and are translated by the rules.
func (h *host) wantRules(why string, to netip.AddrPort) {
	h.Helper()
	for range 5 {
		if _, atSocket := h.connects(to); atSocket {
			h.Fatalf("%s: a connection was translated at the socket", why)
		}
	}
}

// TestRestart checks that sockets are translated between two daemons, and that the second
// one writes nothing if nothing has changed.
func TestRestart(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...), row("dns", proxy.UDP, dns, pods...)}
	h.serve(rows...)
	before := h.socket(h.client, proxy.UDP, dns)
	first, _ := before.ask(netip.AddrPort{})
	h.stop()
	h.start(nil)
	for range 5 {
		if _, atSocket := h.connects(web); !atSocket {
			t.Fatal("between two daemons a connection was translated by the rules")
		}
	}
	h.d.Writes()
	h.must(h.sync(rows...))
	if n := h.d.Writes(); n != 0 {
		t.Errorf("%d entries written; want none", n)
	}
	h.warm(proxy.TCP, web)
	if before.peer() != dns {
		t.Errorf("the peer is %v; want %v", before.peer(), dns)
	}
	by, from := before.ask(netip.AddrPort{})
	h.wantFrom("a socket from before the restart", by, from, first, dns)
}

// TestLeaseExpires checks that programs leave sockets to the rules when the lease expires.
func TestLeaseExpires(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	h.must(h.d.ExpireLease())
	h.wantRules("the lease has expired", web)
}

// TestIncompleteEntries checks that connections are left to the rules if entries of maps are
// missing or have a wrong checksum, and that a Sync repairs them.
func TestIncompleteEntries(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	m := h.d.Map("endpoints")
	var key [8]byte
	var value [24]byte
	h.must(m.NextKey(nil, &key))
	h.must(m.Lookup(key, &value))
	h.must(h.d.WriteMaps(func() error { return m.Delete(key) }))
	h.wantRules("an endpoint is missing", web)
	value[15]++
	h.must(h.d.WriteMaps(func() error { return m.Put(key, value) }))
	h.wantRules("the checksum of an endpoint is wrong", web)
	h.must(h.sync(row("web", proxy.TCP, web, pods[0])))
	h.warm(proxy.TCP, web)
	var frontend [20]byte
	var service [20]byte
	s := h.d.Map("services")
	h.must(errors.Join(s.NextKey(nil, &frontend), s.Lookup(frontend, &service)))
	service[0]++
	h.must(h.d.WriteMaps(func() error { return s.Put(frontend, service) }))
	h.wantRules("the checksum of a frontend is wrong", web)
}

// TestMapsAndRulesFail checks that Apply asks for a Sync if neither maps nor rules can be
// written, and that sockets are translated after that.
func TestMapsAndRulesFail(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	was, is := row("web", proxy.TCP, web, pods[0]), row("web", proxy.TCP, web, pods[1])
	h.serve(was)
	repair, err := h.d.BreakMap("endpoints")
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop() // so that no batch is sent
	step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: was, New: is}}}
	if err := proxytest.Apply(stopped, h.d, step); !errors.Is(err, proxy.ErrNeedSync) {
		t.Errorf("error %v; want ErrNeedSync", err)
	}
	repair()
	h.must(h.sync(is))
	h.warm(proxy.TCP, web)
	if by, _ := h.connects(web); by != pods[1] {
		t.Errorf("answered by %v; want %v", by, pods[1])
	}
}

// TestMapsAreFull checks that the rules serve rows for which the maps have no room, and
// sockets the others.
func TestMapsAreFull(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits map[string]uint32
		left   float64 // rows served by the rules only
		serves float64
	}{
		{"endpoints", map[string]uint32{"endpoints": 4}, 1, 1},
		{"frontends", map[string]uint32{"services": 1}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.start(tt.limits)
			small, large := row("small", proxy.TCP, web, pods[0]), row("large", proxy.UDP, dns, pods...)
			h.must(h.sync(small, large))
			if tt.serves == 1 {
				h.warm(proxy.TCP, web)
			} else {
				h.wantRules("the map of frontends is full", web)
			}
			s := h.socket(h.client, proxy.UDP, dns)
			if s.ask(netip.AddrPort{}); s.translated() {
				t.Error("a connection to a row without room was translated at the socket")
			}
			for name, want := range map[string]float64{"ebpf_rows_left": tt.left, "ebpf_sockets_served": tt.serves} {
				if got := proxytest.Values(t.Context(), h.d, name)[""]; got != want {
					t.Errorf("%s is %v; want %v", name, got, want)
				}
			}
			// A Sync finds that there is room again.
			h.must(h.sync(row("small", proxy.TCP, web, pods[0])))
			h.warm(proxy.TCP, web)
		})
	}
}

// TestNoRoomForSockets checks that the rules serve sockets if their table is full.
func TestNoRoomForSockets(t *testing.T) {
	h := newHost(t)
	h.start(map[string]uint32{"tcp_sockets": 1})
	h.serve(row("dns", proxy.UDP, dns, pods...), row("web", proxy.TCP, web, pods...))
	h.wantRules("the table of sockets is full", web)
}

// TestClosedSocketsAreForgotten checks that closed sockets take no room in the tables.
func TestClosedSocketsAreForgotten(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...), row("dns", proxy.UDP, dns, pods...))
	count := func() int {
		n, err := ebpf.CountConnected(h.EBPF.BPFRoot)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 100 {
		h.connects(web)
	}
	if n := count(); n != 0 {
		t.Errorf("%d closed sockets are in the tables", n)
	}
	var open []*socket
	for range 10 {
		open = append(open, h.socket(h.client, proxy.TCP, web), h.socket(h.client, proxy.UDP, dns))
	}
	if n := count(); n != len(open) {
		t.Errorf("%d sockets are in the tables; want %d", n, len(open))
	}
	for _, s := range open {
		s.close()
	}
	if n := count(); n != 0 {
		t.Errorf("%d sockets are in the tables after all were closed", n)
	}
}

// TestRowGrowsOutOfTheMap checks that the rules serve a row, with its new endpoints, when it
// no longer fits.
func TestRowGrowsOutOfTheMap(t *testing.T) {
	h := newHost(t)
	h.start(map[string]uint32{"endpoints": 2})
	h.serve(row("web", proxy.TCP, web, pods[0]), row("dns", proxy.UDP, dns))
	h.change(row("web", proxy.TCP, web, pods...))
	h.wantRules("the map of endpoints is full", web)
	seen := map[netip.AddrPort]bool{}
	h.eventually("all endpoints answer", func() bool { by, _ := h.connects(web); seen[by] = true; return len(seen) == len(pods) })
	h.change(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	if s.ask(netip.AddrPort{}); !s.translated() {
		t.Error("a row that does not fit takes room")
	}
}

// TestSidecar checks that the sockets of a namespace with its own rules for outgoing packets
// are left alone as soon as there are such rules.
func TestSidecar(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	nft := func(args string) {
		t.Helper()
		err := h.client.Do(func() error {
			out, err := exec.Command("nft", strings.Fields(args)...).CombinedOutput()
			if err != nil {
				return errors.New(string(out))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	nft("add table ip mesh")
	nft("add chain ip mesh output { type nat hook output priority 0 ; }")
	h.wantRules("the namespace has rules", web)
	nft("delete table ip mesh")
	h.warm(proxy.TCP, web)
}

// TestSocketOptions checks that sockets with options that affect routing are left alone.
func TestSocketOptions(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	for name, set := range map[string]func(*socket) error{
		"a device": func(s *socket) error { return bindToDevice(s.fd, "eth0") },
		"a mark":   func(s *socket) error { return setMark(s.fd, 1<<20) },
	} {
		s := h.socket(h.client, proxy.TCP, netip.AddrPort{})
		h.must(set(s))
		if s.connect(web); s.translated() {
			t.Errorf("a socket with %s was translated", name)
		}
	}
}

// TestChangesWhileConnecting checks that no connection reaches an endpoint of another Service
// while rows change.
func TestChangesWhileConnecting(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[:2]...), row("dns", proxy.UDP, dns, pods[2]))
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			list := [][]netip.AddrPort{pods[:2], pods[:1], {pods[1], pods[0]}, pods[1:2]}[i%4]
			h.change(row("web", proxy.TCP, web, list...))
			h.change(row("dns", proxy.UDP, alias, pods[2], pods[(i+2)%3]))
			h.change(row("dns", proxy.UDP, dns, pods[2]))
		}
	})
	n, atSockets := 0, 0
	for ; ctx.Err() == nil; n++ {
		by, atSocket := h.connects(web)
		if by != pods[0] && by != pods[1] {
			t.Errorf("%v answered", by)
		}
		if atSocket {
			atSockets++
		}
	}
	wg.Wait()
	if t.Logf("%d connections, %d translated at the socket", n, atSockets); atSockets < n/2 {
		t.Error("most were translated by the rules")
	}
}

// TestInvalidPaths checks the errors about paths, and the fallback to mode nftables.
func TestInvalidPaths(t *testing.T) {
	lab.Require(t)
	root := bpffs(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cgroups.Close()
	cgroup, err := cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(root, "old")
	if err := os.MkdirAll(filepath.Join(old, ebpf.Format), 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := cilium.NewMap(&cilium.MapSpec{Type: cilium.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(old, ebpf.Format, "services")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		at   mode.EBPF
		want string
	}{
		{"no such cgroup", mode.EBPF{CgroupRoot: "/nowhere", BPFRoot: root}, "/nowhere is not in a cgroup2 file system: set --cgroup-root"},
		{"not a cgroup", mode.EBPF{CgroupRoot: "/proc", BPFRoot: root}, "/proc is not in a cgroup2 file system: set --cgroup-root"},
		{"no BPF file system", mode.EBPF{CgroupRoot: cgroup, BPFRoot: "/proc/x"}, "/proc/x is not in a BPF file system: run mount -t bpf bpf /sys/fs/bpf, or set --bpf-root"},
		{"another version", mode.EBPF{CgroupRoot: cgroup, BPFRoot: old}, "are of another version; remove them with sluice --cleanup"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mode.Settings{MasqueradeBit: 14, EBPF: tt.at}
			if _, err := ebpf.Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v; want %q", err, tt.want)
			}
			s.EBPF.Fallback = true
			d, err := ebpf.Mode().Open(t.Context(), s)
			if err != nil {
				t.Fatalf("open with a fallback: %v", err)
			}
			if _, own := d.(*ebpf.Dataplane); own {
				t.Error("mode ebpf was opened")
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFindCgroup checks how the cgroup of the host is found in mountinfo.
func TestFindCgroup(t *testing.T) {
	lab.RequireRoot(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cgroups.Close()
	child, err := cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(filepath.Dir(child))
	const line = "30 25 0:26 %s %s rw,nosuid shared:9 - %s cgroup rw\n"
	for _, tt := range []struct{ name, mounts, want, wrong string }{
		{"the host's", fmt.Sprintf(line, "/", "/proc", "proc") + fmt.Sprintf(line, "/", root, "cgroup2"), root, ""},
		{"a mount of a part is skipped", fmt.Sprintf(line, "/kubepods", child, "cgroup2") + fmt.Sprintf(line, "/", root, "cgroup2"), root, ""},
		{"a container's", fmt.Sprintf(line, "/", child, "cgroup2"), "", "cgroup2 at " + child + " has only the cgroups of this container: mount that of the host, and set --cgroup-root to it"},
		{"none", fmt.Sprintf(line, "/", "/sys/fs/cgroup/cpu", "cgroup"), "", "no cgroup2 is mounted: mount it, or set --cgroup-root"},
	} {
		got, err := ebpf.FindCgroup(tt.mounts, bpffs(t))
		if got != tt.want || (err != nil) != (tt.wrong != "") || err != nil && err.Error() != tt.wrong {
			t.Errorf("%s: %q, %v; want %q, %q", tt.name, got, err, tt.want, tt.wrong)
		}
	}
}

// TestForeignProgram checks that nothing is attached if another program is attached
// exclusively, and that the rules serve then.
func TestForeignProgram(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	p, err := cilium.NewProgram(&cilium.ProgramSpec{
		Type: cilium.CGroupSockAddr, AttachType: cilium.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.LoadImm(asm.R0, 1, asm.DWord), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir, err := os.Open(h.EBPF.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	at := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: cilium.AttachCGroupInet4Connect}
	h.must(link.RawAttachProgram(at))
	err = h.sync(row("web", proxy.TCP, web, pods...))
	want := "sockets are not translated, the nftables rules serve all connections: attach connect4 to cgroup " + h.EBPF.CgroupRoot + ", where another program may be attached exclusively: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v; want %q", err, want)
	}
	h.wantRules("a foreign program is attached", web)
	left, err := os.ReadDir(h.EBPF.BPFRoot)
	if err != nil || len(left) != 1 || left[0].Name() != ebpf.Format {
		t.Errorf("pinned: %v, error %v; want maps only", left, err)
	}
	detach := link.RawDetachProgramOptions{Target: at.Target, Program: p, Attach: at.Attach}
	h.must(link.RawDetachProgram(detach))
	h.serve(row("web", proxy.TCP, web, pods...))
}

// TestCleanup checks that everything is removed, unless the mode is open.
func TestCleanup(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	if removed, err := ebpf.Cleanup(t.Context(), h.Settings, h.d); err != nil || len(removed) > 0 {
		t.Errorf("while the mode is open: removed %v, error %v; want nothing", removed, err)
	}
	c := h.socket(h.client, proxy.TCP, web)
	removed, err := ebpf.Cleanup(t.Context(), h.Settings, nil)
	if err != nil || len(removed) != 1 {
		t.Errorf("removed %v, error %v; want everything", removed, err)
	}
	if _, err := os.Stat(h.EBPF.BPFRoot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory still exists: %v", err)
	}
	c.receive()
	h.wantRules("everything is removed", web)
	if removed, err := ebpf.Cleanup(t.Context(), h.Settings, nil); err != nil || len(removed) > 0 {
		t.Errorf("second call: removed %v, error %v; want nothing", removed, err)
	}
}
