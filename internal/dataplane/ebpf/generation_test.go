package ebpf_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// generation returns the generation of the maps.
func (h *host) generation() (n uint64) {
	h.Helper()
	h.must(h.d.Map("generation").Lookup(uint32(0), &n))
	return n
}

// wantSocket checks that connections are translated at their socket.
func (h *host) wantSocket(why string, to netip.AddrPort) {
	h.Helper()
	for range 5 {
		if _, atSocket := h.connects(to); !atSocket {
			h.Fatalf("%s: a connection was translated by the rules", why)
		}
	}
}

// TestGenerations checks that each change makes a new generation, and that it is 0 meanwhile.
func TestGenerations(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	seen := map[uint64]string{0: "a write that was interrupted"}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"the first rows", func() error { return h.sync(row("web", proxy.TCP, web, pods[0])) }},
		{"the same rows", func() error { return h.sync(row("web", proxy.TCP, web, pods[0])) }},
		{"another row", func() error { h.change(row("web", proxy.TCP, web, pods[1])); return nil }},
		{"a renewed lease", h.d.RenewLease},
		{"a test", func() error {
			return h.d.WriteMaps(func() error {
				if n := h.generation(); n != 0 {
					t.Errorf("the generation is %d while maps are written; want 0", n)
				}
				return nil
			})
		}},
	} {
		h.must(step.do())
		n := h.generation()
		if was, ok := seen[n]; ok {
			t.Errorf("%s: the generation is the same as after %s", step.name, was)
		}
		seen[n] = step.name
	}
}

// TestKilledWhileWriting checks that programs do not use caches after a daemon was killed
// while it wrote, until the next daemon starts.
func TestKilledWhileWriting(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	var key [8]byte
	m := h.d.Map("endpoints")
	h.must(m.NextKey(nil, &key))
	h.must(h.d.Map("generation").Put(uint32(0), uint64(0)))
	h.wantSocket("nothing was written yet", web)
	h.must(m.Delete(key))
	h.wantRules("the endpoint was deleted", web)
	h.stop()
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	if h.generation() == 0 {
		t.Error("the generation is still 0, programs will never cache again")
	}
}

// TestForeignWrite checks that programs see an entry that another process deleted when the
// lease is renewed, even if they had cached it, and that a Sync repairs it.
func TestForeignWrite(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	r := row("web", proxy.TCP, web, pods[0])
	h.serve(r)
	var key [8]byte
	m := h.d.Map("endpoints")
	h.must(m.NextKey(nil, &key))
	h.must(m.Delete(key))
	h.must(h.d.RenewLease())
	h.wantRules("the lease was renewed", web)
	h.must(h.sync(r))
	h.warm(proxy.TCP, web)
}

// TestNodeChanges checks that caches are invalid after the node has changed.
func TestNodeChanges(t *testing.T) {
	for name, change := range map[string]func(*host) error{
		"the pod is not a local pod": func(h *host) error {
			n := *h.node
			n.LocalPods.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29")} // the node's address
			return proxytest.Apply(t.Context(), h.d, &proxy.Delta{Node: &n})
		},
		"the node has the Service's address": func(h *host) error {
			err := exec.Command("ip", "addr", "add", web.Addr().String(), "dev", "lo").Run()
			h.eventually("the new address is noticed", func() bool { _, atSocket := h.connects(web); return !atSocket })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.start(nil)
			h.serve(row("web", proxy.TCP, web, pods...))
			h.must(h.lab.Node().Do(func() error { return change(h) }))
			h.wantRules(name, web)
		})
	}
}

// TestMapsOfAnotherFormat checks an upgrade or downgrade to another format of maps: the old
// programs act, with the old maps, until those of the new daemon replace them.
func TestMapsOfAnotherFormat(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[0]))
	h.stop()
	other, kept := filepath.Join(h.EBPF.BPFRoot, "maps-0"), filepath.Join(h.EBPF.BPFRoot, ebpf.Format, "decisions")
	h.must(os.Rename(filepath.Join(h.EBPF.BPFRoot, ebpf.Format), other))
	h.must(os.MkdirAll(filepath.Dir(kept), 0o700))
	m, err := cilium.NewMap(&cilium.MapSpec{Type: cilium.Array, KeySize: 4, ValueSize: 64, MaxEntries: 8192})
	if err == nil {
		err = errors.Join(m.Pin(kept), m.Close()) // as an earlier version pinned it, with values of another size
	}
	if err != nil {
		t.Fatal(err)
	}
	h.start(nil)
	by := func(want netip.AddrPort) {
		t.Helper()
		if by, _ := h.connects(web); by != want {
			t.Errorf("%v answered; want %v", by, want)
		}
	}
	by(pods[0])
	h.serve(row("web", proxy.TCP, web, pods[1]))
	by(pods[1])
	for _, path := range []string{other, kept} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v; want that it does not exist", path, err)
		}
	}
}

// TestFlood checks that clients that connect to random addresses evict what is cached for
// others, but do no other harm.
func TestFlood(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("web", proxy.TCP, web, pods[:2]...), row("dns", proxy.UDP, dns, pods[2]))
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for _, from := range []*lab.Host{h.client, h.pod("10.0.0.20")} {
		wg.Go(func() {
			s := h.socket(from, proxy.UDP, netip.AddrPort{})
			for ctx.Err() == nil {
				n := rand.Uint32()
				_ = unix.Connect(s.fd, &unix.SockaddrInet4{Addr: [4]byte{172, 30, byte(n), byte(n >> 8)}, Port: int(n >> 16)})
			}
		})
	}
	n := 0
	for ; ctx.Err() == nil; n++ {
		by, atSocket := h.connects(web)
		if by != pods[0] && by != pods[1] || !atSocket {
			t.Errorf("%v answered, translated at the socket: %v", by, atSocket)
		}
		if n%100 == 0 {
			h.change(row("dns", proxy.UDP, dns, pods[2], pods[n/100%3]))
		}
	}
	wg.Wait()
	t.Logf("%d connections", n)
}

// TestFormat pins the layout of the maps, which a daemon takes over from its predecessor if
// they have the same format. A change of the layout needs a new format, except that a map may be
// added; update both here.
func TestFormat(t *testing.T) {
	const format, want = "maps-4", `asked_sockets SkStorage 4:4 x 0
connections LRUHash 40:40 x 16384
counters PerCPUArray 4:8 x 4
endpoints Hash 8:24 x 1048576
generation Array 4:8 x 1
members Hash 24:4 x 131072
node_addrs Hash 16:4 x 65536
questions RingBuf 0:0 x 65536
recent Array 4:64 x 4096
services Hash 20:20 x 262144
settings Array 4:24 x 1
spaces LRUHash 16:40 x 16384
tcp_sockets Array 4:320 x 32768
udp_sockets Array 4:992 x 8192
`
	got, err := ebpf.Layout()
	if err != nil {
		t.Fatal(err)
	}
	if got != want || ebpf.Format != format {
		t.Errorf("format %s:\n%swant %s:\n%s", ebpf.Format, got, format, want)
	}
}
