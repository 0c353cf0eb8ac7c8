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

// connects makes one connection from the client and says whether the socket was
// translated.
func (h *host) connects(to netip.AddrPort) (by netip.AddrPort, atSocket bool) {
	h.Helper()
	s := h.socket(h.client, proxy.TCP, to)
	defer s.close()
	by, _ = s.receive()
	return by, s.translated()
}

// wantRules checks that connections work and are translated by the rules alone.
func (h *host) wantRules(why string, to netip.AddrPort) {
	h.Helper()
	for range 5 {
		if _, atSocket := h.connects(to); atSocket {
			h.Fatalf("%s: the socket was translated", why)
		}
	}
}

// TestRestart: what a daemon leaves is in force until the next one comes, which
// writes nothing that is right already.
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
			t.Fatal("between two daemons the rules serve alone")
		}
	}
	h.d.Writes()
	if err := h.sync(rows...); err != nil {
		t.Fatal(err)
	}
	if n := h.d.Writes(); n != 0 {
		t.Errorf("%d entries were written; want none", n)
	}
	h.warm(proxy.TCP, web)
	if before.peer() != dns {
		t.Errorf("the peer is %v; want %v", before.peer(), dns)
	}
	by, from := before.ask(netip.AddrPort{})
	h.wantFrom("a socket of before", by, from, first, dns)
}

// TestNobodyComesBack: programs give up by themselves, and the rules serve.
func TestNobodyComesBack(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	if err := h.d.ExpireLease(); err != nil {
		t.Fatal(err)
	}
	h.wantRules("the permission has ended", web)
}

// TestEntriesAreLost or broken, as by a daemon that is killed between two writes.
func TestEntriesAreLost(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	m := h.d.Map("endpoints")
	var key [8]byte
	var value [24]byte
	if err := m.NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := m.Lookup(key, &value); err != nil {
		t.Fatal(err)
	}
	if err := h.d.WriteMaps(func() error { return m.Delete(key) }); err != nil {
		t.Fatal(err)
	}
	h.wantRules("an endpoint is missing", web)
	value[15]++
	if err := h.d.WriteMaps(func() error { return m.Put(key, value) }); err != nil {
		t.Fatal(err)
	}
	h.wantRules("an endpoint is not what it says", web)
	if err := h.sync(row("web", proxy.TCP, web, pods[0])); err != nil {
		t.Fatal(err)
	}
	h.warm(proxy.TCP, web)
	var frontend [20]byte
	var service [20]byte
	s := h.d.Map("services")
	if err := errors.Join(s.NextKey(nil, &frontend), s.Lookup(frontend, &service)); err != nil {
		t.Fatal(err)
	}
	service[0]++
	if err := h.d.WriteMaps(func() error { return s.Put(frontend, service) }); err != nil {
		t.Fatal(err)
	}
	h.wantRules("a frontend is not what it says", web)
}

// TestNeitherCanBeWritten, maps nor rules: only a full sync is right then, after which
// sockets are served again.
func TestNeitherCanBeWritten(t *testing.T) {
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
		t.Errorf("%v; want an error that asks for a full sync", err)
	}
	repair()
	if err := h.sync(is); err != nil {
		t.Fatal(err)
	}
	h.warm(proxy.TCP, web)
	if by, _ := h.connects(web); by != pods[1] {
		t.Errorf("answered by %v; want %v", by, pods[1])
	}
}

// TestMapsAreFull: the rules serve what has no room, sockets the rest.
func TestMapsAreFull(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits map[string]uint32
		left   float64 // rows
		serves float64
	}{
		{"endpoints", map[string]uint32{"endpoints": 4}, 1, 1},
		{"frontends", map[string]uint32{"services": 1}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.start(tt.limits)
			small, large := row("small", proxy.TCP, web, pods[0]), row("large", proxy.UDP, dns, pods...)
			if err := h.sync(small, large); err != nil {
				t.Fatal(err)
			}
			if tt.serves == 1 {
				h.warm(proxy.TCP, web)
			} else {
				h.wantRules("there is no room for frontends", web)
			}
			s := h.socket(h.client, proxy.UDP, dns)
			if s.ask(netip.AddrPort{}); s.translated() {
				t.Error("a row was translated that has no room")
			}
			for name, want := range map[string]float64{"ebpf_rows_left": tt.left, "ebpf_sockets_served": tt.serves} {
				if got := proxytest.Values(t.Context(), h.d, name)[""]; got != want {
					t.Errorf("%s is %v; want %v", name, got, want)
				}
			}
			// There is room again once it is smaller, at the latest with a Sync.
			if err := h.sync(row("small", proxy.TCP, web, pods[0])); err != nil {
				t.Fatal(err)
			}
			h.warm(proxy.TCP, web)
		})
	}
}

// TestNoRoomForSockets: the rules serve sockets that cannot be remembered.
func TestNoRoomForSockets(t *testing.T) {
	h := newHost(t)
	h.start(map[string]uint32{"tcp_sockets": 1})
	h.serve(row("dns", proxy.UDP, dns, pods...), row("web", proxy.TCP, web, pods...))
	h.wantRules("there is no room", web)
}

// TestClosedSocketsAreForgotten, so that there is always room for others.
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
		t.Errorf("%d closed sockets are remembered", n)
	}
	var open []*socket
	for range 10 {
		open = append(open, h.socket(h.client, proxy.TCP, web), h.socket(h.client, proxy.UDP, dns))
	}
	if n := count(); n != len(open) {
		t.Errorf("%d sockets are remembered; want %d", n, len(open))
	}
	for _, s := range open {
		s.close()
	}
	if n := count(); n != 0 {
		t.Errorf("%d sockets are remembered after all were closed", n)
	}
}

// TestRowGrowsOutOfTheMap by a step: the rules have it then, with the new endpoints.
func TestRowGrowsOutOfTheMap(t *testing.T) {
	h := newHost(t)
	h.start(map[string]uint32{"endpoints": 2})
	h.serve(row("web", proxy.TCP, web, pods[0]), row("dns", proxy.UDP, dns))
	h.change(row("web", proxy.TCP, web, pods...))
	h.wantRules("there is no room", web)
	seen := map[netip.AddrPort]bool{}
	h.eventually("all endpoints answer", func() bool { by, _ := h.connects(web); seen[by] = true; return len(seen) == len(pods) })
	h.change(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	if s.ask(netip.AddrPort{}); !s.translated() {
		t.Error("what was left keeps others out")
	}
}

// TestSidecar: a namespace with rules of its own for what it sends is left alone, from
// the moment that it has them.
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

// TestOtherOptionsOfASocket change its way: it is left alone.
func TestOtherOptionsOfASocket(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	for name, set := range map[string]func(*socket) error{
		"a device": func(s *socket) error { return bindToDevice(s.fd, "eth0") },
		"a mark":   func(s *socket) error { return setMark(s.fd, 1<<20) },
	} {
		s := h.socket(h.client, proxy.TCP, netip.AddrPort{})
		if err := set(s); err != nil {
			t.Fatal(err)
		}
		if s.connect(web); s.translated() {
			t.Errorf("a socket with %s was translated", name)
		}
	}
}

// TestChangesWhileConnecting: no connection gets to an endpoint of another Service,
// or to one that has long gone.
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
	if t.Logf("%d connections, %d at the socket", n, atSockets); atSockets < n/2 {
		t.Error("most were left to the rules")
	}
}

// TestBadPlaces are named, with what to do.
func TestBadPlaces(t *testing.T) {
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
				t.Fatalf("no fallback: %v", err)
			}
			if _, own := d.(*ebpf.Dataplane); own {
				t.Error("the fallback is the mode itself")
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCgroupIsFound among mounts, unless it is that of a container.
func TestCgroupIsFound(t *testing.T) {
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
		{"a part of it is no root", fmt.Sprintf(line, "/kubepods", child, "cgroup2") + fmt.Sprintf(line, "/", root, "cgroup2"), root, ""},
		{"a container's", fmt.Sprintf(line, "/", child, "cgroup2"), "", "cgroup2 at " + child + " has only the cgroups of this container: mount that of the host, and set --cgroup-root to it"},
		{"none", fmt.Sprintf(line, "/", "/sys/fs/cgroup/cpu", "cgroup"), "", "no cgroup2 is mounted: mount it, or set --cgroup-root"},
	} {
		got, err := ebpf.FindCgroup(tt.mounts, bpffs(t))
		if got != tt.want || (err != nil) != (tt.wrong != "") || err != nil && err.Error() != tt.wrong {
			t.Errorf("%s: %q, %v; want %q, %q", tt.name, got, err, tt.want, tt.wrong)
		}
	}
}

// TestForeignProgram tolerates no other: nothing is half attached, the rules serve.
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
	if err := link.RawAttachProgram(at); err != nil {
		t.Fatal(err)
	}
	err = h.sync(row("web", proxy.TCP, web, pods...))
	want := "sockets are not translated, the nftables rules serve all connections: attach connect4 to cgroup " + h.EBPF.CgroupRoot + ", where another program may be attached exclusively: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v; want %q", err, want)
	}
	h.wantRules("a foreign program is there", web)
	left, err := os.ReadDir(h.EBPF.BPFRoot)
	if err != nil || len(left) != 1 || left[0].Name() != ebpf.Format {
		t.Errorf("there are %v, %v; want maps only", left, err)
	}
	detach := link.RawDetachProgramOptions{Target: at.Target, Program: p, Attach: at.Attach}
	if err := link.RawDetachProgram(detach); err != nil {
		t.Fatal(err)
	}
	h.serve(row("web", proxy.TCP, web, pods...))
}

// TestCleanup removes all of it, unless it is open.
func TestCleanup(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods...))
	if removed, err := ebpf.Cleanup(t.Context(), h.Settings, h.d); err != nil || len(removed) > 0 {
		t.Errorf("of an open one it removed %v, %v", removed, err)
	}
	c := h.socket(h.client, proxy.TCP, web)
	removed, err := ebpf.Cleanup(t.Context(), h.Settings, nil)
	if err != nil || len(removed) != 1 {
		t.Errorf("removed %v, %v; want all", removed, err)
	}
	if _, err := os.Stat(h.EBPF.BPFRoot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	c.receive()
	h.wantRules("all is removed", web)
	if removed, err := ebpf.Cleanup(t.Context(), h.Settings, nil); err != nil || len(removed) > 0 {
		t.Errorf("twice: removed %v, %v", removed, err)
	}
}
