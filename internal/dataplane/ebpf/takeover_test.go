package ebpf_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// takeOver stops the mode and lets mode nftables serve a row, without a Cleanup.
func (h *host) takeOver(r *proxy.ServicePort) proxy.Dataplane {
	h.Helper()
	h.stop()
	s := proxy.NewState()
	s.Node, s.Rows[r.Key] = h.node, r
	var d *nftables.Dataplane
	err := h.lab.Node().Do(func() (err error) {
		if d, err = nftables.Alone.Open(h.Context(), h.Settings); err == nil {
			err = proxytest.Sync(h.Context(), d, s)
		}
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	h.cleanup(d.Close)
	return d
}

// pinned returns the pins of the mode.
func (h *host) pinned() (out []string) {
	h.Helper()
	for _, what := range []string{"*", ebpf.Format + "/*"} {
		names, err := filepath.Glob(filepath.Join(h.EBPF.BPFRoot, what))
		if err != nil {
			h.Fatal(err)
		}
		for _, n := range names {
			out = append(out, n[len(h.EBPF.BPFRoot)+1:])
		}
	}
	return out
}

// TestTakeover checks that the rules of the next mode serve new connections, and that sockets
// that were translated still see the Service's address until the last of them is closed.
func TestTakeover(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	loose, connected := h.socket(h.client, proxy.UDP, netip.AddrPort{}), h.socket(h.client, proxy.UDP, dns)
	h.must(unix.Sendto(loose.fd, []byte("?"), 0, sockaddr(dns)))
	if !loose.translated() || !connected.translated() {
		t.Fatal("a socket was translated by the rules")
	}
	d := h.takeOver(row("dns", proxy.UDP, dns, pods[1]))
	want := []string{"getpeername4", "getpeername6", ebpf.Format, "recvmsg4", "recvmsg6", "release", ebpf.Format + "/asked_sockets", ebpf.Format + "/tcp_sockets", ebpf.Format + "/udp_sockets"}
	for range 2 {
		removed, err := ebpf.Cleanup(t.Context(), h.Settings, d)
		if !errors.Is(err, proxy.ErrDraining) || len(removed) > 0 {
			t.Fatalf("removed %v, error %v; want ErrDraining", removed, err)
		}
		if diff := cmp.Diff(want, h.pinned()); diff != "" {
			t.Fatalf("pins mismatch (-want +got):\n%s", diff)
		}
	}
	by, from := loose.receive()
	h.wantFrom("a reply that was under way", by, from, pods[0], dns)
	by, from = loose.ask(dns)
	h.wantFrom("a new query", by, from, pods[1], dns)
	by, from = connected.ask(netip.AddrPort{})
	h.wantFrom("connected", by, from, pods[0], dns)
	if connected.peer() != dns {
		t.Errorf("the peer is %v; want %v", connected.peer(), dns)
	}
	by, _ = h.socket(h.client, proxy.UDP, dns).ask(netip.AddrPort{})
	h.wantFrom("a new socket", by, dns, pods[1], dns)
	connected.close()
	h.eventually("everything is removed", func() bool {
		removed, err := ebpf.Cleanup(t.Context(), h.Settings, d)
		return err == nil && len(removed) == 1
	})
	if _, err := os.Stat(h.EBPF.BPFRoot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory still exists: %v", err)
	}
}

// TestTakeoverWithoutCapabilities checks that the next mode, if it cannot count the sockets,
// keeps programs only once, for replies that are under way.
func TestTakeoverWithoutCapabilities(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	d := h.takeOver(row("dns", proxy.UDP, dns, pods[0]))
	h.must(os.Remove(filepath.Join(h.EBPF.BPFRoot, ebpf.Format, "udp_sockets")))
	if _, err := ebpf.Cleanup(t.Context(), h.Settings, d); !errors.Is(err, proxy.ErrDraining) {
		t.Fatalf("error %v; want ErrDraining", err)
	}
	removed, err := ebpf.Cleanup(t.Context(), h.Settings, d)
	if err != nil || len(removed) != 1 || len(h.pinned()) > 0 {
		t.Errorf("removed %v, error %v, left %v; want everything removed", removed, err, h.pinned())
	}
}

// TestTakeoverByOtherProxy checks a takeover by a proxy that does not know about the programs,
// such as kube-proxy: they leave new connections alone within seconds, and unconnected UDP
// sockets a minute later.
func TestTakeoverByOtherProxy(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	loose := h.socket(h.client, proxy.UDP, netip.AddrPort{})
	by, from := loose.ask(dns)
	h.wantFrom("at first", by, from, pods[0], dns)
	h.takeOver(row("dns", proxy.UDP, dns, pods[1]))
	h.start(nil) // to read the maps; it writes nothing before a Sync
	if left, err := h.d.LeaseLeft(); err != nil || left > 10*time.Second {
		t.Errorf("the lease is valid for %v, error %v; want at most 10s", left, err)
	}
	by, from = loose.ask(dns)
	h.wantFrom("soon after", by, from, pods[0], dns)
	h.must(h.d.ExpireLease())
	by, from = loose.ask(dns)
	h.wantFrom("later", by, from, pods[1], dns)
}
