package ebpf_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/ebpf"
	"sluice/internal/proxy"
)

// meters are the programs that count bytes.
var meters = []string{"ends", "received", "sent"}

// attachedMeters returns which of them are attached.
func (h *host) attachedMeters() []string {
	h.Helper()
	return slices.DeleteFunc(h.pinned(), func(name string) bool { return !slices.Contains(meters, name) })
}

// tcpEntries returns how many TCP sockets are in their table.
func (h *host) tcpEntries() (n int) {
	h.Helper()
	var key uint32
	var set []byte
	all := h.d.Map("tcp_sockets").Iterate()
	for all.Next(&key, &set) {
		for cookies := set[:4*8]; len(cookies) > 0; cookies = cookies[8:] {
			if binary.NativeEndian.Uint64(cookies) != 0 {
				n++
			}
		}
	}
	h.must(all.Err())
	return n
}

// bytesOf returns the bytes that were counted for a frontend, in both directions.
func (h *host) bytesOf(at netip.AddrPort) (n [2]uint64) {
	h.Helper()
	err := h.d.Traffic(h.Context(), func(s proxy.Sample) {
		if s.Frontend == at && s.Endpoint.IsValid() {
			n[0] += s.Bytes[0]
			n[1] += s.Bytes[1]
		}
	})
	if err != nil {
		h.Fatal(err)
	}
	return n
}

// rawAt and rawPod are a Service whose server is run by the test itself, and its endpoint.
var rawAt, rawPod = netip.MustParseAddrPort("172.30.0.3:81"), netip.MustParseAddrPort("10.0.0.14:81")

// listen listens on the endpoint of rawAt.
func (h *host) listen() net.Listener {
	h.Helper()
	var ln net.Listener
	err := h.pod(rawPod.Addr().String()).Do(func() (err error) {
		ln, err = net.Listen("tcp", rawPod.String())
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { ln.Close() })
	return ln
}

// send sends bytes, and reads them all at the server.
func (h *host) send(s *socket, server net.Conn, bytes int) {
	h.Helper()
	if _, err := unix.Write(s.fd, make([]byte, bytes)); err != nil {
		h.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, server, int64(bytes)); err != nil {
		h.Fatal(err)
	}
}

// dial connects the client to rawAt, and returns both ends of the connection.
func (h *host) dial(ln net.Listener) (*socket, *net.TCPConn) {
	h.Helper()
	s := h.socket(h.client, proxy.TCP, rawAt)
	c, err := ln.Accept()
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { c.Close() })
	h.must(c.SetDeadline(time.Now().Add(10 * time.Second)))
	return s, c.(*net.TCPConn)
}

// TestMetersAreOptional checks that programs that count bytes are attached only if the
// settings ask for it, even if a former daemon had attached them.
func TestMetersAreOptional(t *testing.T) {
	h := newHost(t)
	ln := h.listen()
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...), row("raw", proxy.TCP, rawAt, rawPod)}
	var open []*socket
	for _, counts := range []bool{false, true, false} {
		h.CountBytes = counts
		h.start(nil)
		h.serve(rows...)
		want := []string{}
		if counts {
			want = meters
		}
		if got := h.attachedMeters(); !slices.Equal(got, want) {
			t.Errorf("CountBytes %t: attached are %v; want %v", counts, got, want)
		}
		before := h.bytesOf(rawAt)[0]
		s, server := h.dial(ln)
		open = append(open, s)
		h.send(s, server, 1_000)
		if n := h.bytesOf(rawAt)[0] - before; (n == 1_000) != counts || (n == 0) == counts {
			t.Errorf("CountBytes %t: %d of 1000 bytes were counted", counts, n)
		}
		h.stop()
	}
	h.CountBytes = false
	h.start(nil)
	h.serve(rows...)
	for _, s := range open {
		s.close()
	}
	if n := h.tcpEntries(); n != 0 {
		t.Errorf("%d closed sockets are in the table", n)
	}
}

// TestEndedSocketsAreForgotten checks that sockets are removed from the table, and counted,
// in whatever order they end and are closed.
func TestEndedSocketsAreForgotten(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	ln := h.listen()
	h.serve(row("web", proxy.TCP, web, pods...), row("raw", proxy.TCP, rawAt, rawPod))
	want := uint64(0)
	for range 20 {
		for _, end := range []func(*socket, *net.TCPConn){
			func(s *socket, _ *net.TCPConn) { s.close() },
			func(s *socket, server *net.TCPConn) { server.Close(); s.close() },
			func(s *socket, server *net.TCPConn) { _ = server.SetLinger(0); server.Close(); s.close() },
			func(s *socket, server *net.TCPConn) {
				go s.close()
				_ = server.SetLinger(0)
				server.Close()
			},
		} {
			s, server := h.dial(ln)
			h.send(s, server, 100)
			want += 100
			end(s, server)
		}
	}
	h.eventually("the table is empty", func() bool { return h.tcpEntries() == 0 })
	s, server := h.dial(ln)
	_ = server.SetLinger(0)
	server.Close()
	_, _ = unix.Read(s.fd, make([]byte, 1))
	if n := h.tcpEntries(); n != 1 {
		t.Errorf("%d sockets are in the table; want the one that has ended but is not closed", n)
	}
	if s.close(); h.tcpEntries() != 0 {
		t.Error("a socket that has ended and is closed is in the table")
	}
	h.eventually("all bytes are counted", func() bool { return h.bytesOf(rawAt)[0] == want })
	if got := h.bytesOf(rawAt)[0]; got != want {
		t.Errorf("%d bytes; want %d", got, want)
	}
}

// TestEndIsMissed checks that a socket is removed from the table that was closed while bytes
// were counted, and ends when they no longer are.
func TestEndIsMissed(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	ln := h.listen()
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...), row("raw", proxy.TCP, rawAt, rawPod)}
	h.serve(rows...)
	s, server := h.dial(ln)
	h.must(server.SetReadBuffer(1))
	if _, err := unix.Write(s.fd, make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	s.close()
	h.bytesOf(rawAt)
	if n := h.tcpEntries(); n != 1 {
		t.Fatalf("%d sockets are in the table; want the one with data in flight", n)
	}
	if n, err := ebpf.CountConnected(h.EBPF.BPFRoot); err != nil || n != 0 {
		t.Errorf("%d sockets are connected, error %v; want none", n, err)
	}
	h.stop()
	h.CountBytes = false
	h.start(nil)
	h.serve(rows...)
	h.must(server.SetLinger(0))
	server.Close()
	h.eventually("the table is empty", func() bool { h.bytesOf(rawAt); return h.tcpEntries() == 0 })
}

// foreign attaches another sockops program, exclusively if alone is set.
func (h *host) foreign(instructions asm.Instructions, alone bool) (detach func()) {
	h.Helper()
	p, err := cilium.NewProgram(&cilium.ProgramSpec{
		Type: cilium.SockOps, AttachType: cilium.AttachCGroupSockOps, License: "GPL",
		Instructions: append(instructions, asm.LoadImm(asm.R0, 1, asm.DWord).WithSymbol("out"), asm.Return()),
	})
	if err != nil {
		h.Fatal(err)
	}
	h.cleanup(p.Close)
	if !alone {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: h.EBPF.CgroupRoot, Attach: cilium.AttachCGroupSockOps, Program: p})
		if err != nil {
			h.Fatal(err)
		}
		return func() { _ = l.Close() }
	}
	dir, err := os.Open(h.EBPF.CgroupRoot)
	if err != nil {
		h.Fatal(err)
	}
	h.cleanup(dir.Close)
	at := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: cilium.AttachCGroupSockOps}
	h.must(link.RawAttachProgram(at))
	return func() {
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: at.Target, Program: p, Attach: at.Attach}); err != nil {
			h.Error(err)
		}
	}
}

// TestForeignMeter checks that sockets are translated even if a foreign sockops program is
// attached exclusively, and that bytes are counted once it is detached.
func TestForeignMeter(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	detach := h.foreign(nil, true)
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...)}
	h.serve(rows...)
	if got := h.attachedMeters(); len(got) > 0 {
		t.Errorf("attached are %v; want none", got)
	}
	detach()
	h.serve(rows...)
	if got := h.attachedMeters(); !slices.Equal(got, meters) {
		t.Errorf("attached are %v; want %v", got, meters)
	}
}

// TestMeterIsDetached checks that a sync attaches a meter again that another process has
// detached.
func TestMeterIsDetached(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	ln := h.listen()
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...), row("raw", proxy.TCP, rawAt, rawPod)}
	h.serve(rows...)
	ends, err := link.LoadPinnedLink(filepath.Join(h.EBPF.BPFRoot, "ends"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.must(errors.Join(ends.Detach(), ends.Close()))
	h.serve(rows...)
	s, server := h.dial(ln)
	h.send(s, server, 1_000)
	if n := h.bytesOf(rawAt)[0]; n != 1_000 {
		t.Errorf("%d bytes; want 1000", n)
	}
}

// TestForeignFlags checks that bytes are counted when a socket is closed if another program
// has cleared the flag by which programs learn about its end.
func TestForeignFlags(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	ln := h.listen()
	h.serve(row("web", proxy.TCP, web, pods...), row("raw", proxy.TCP, rawAt, rawPod))
	const activeEstablished = 4 // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
	defer h.foreign(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // ctx->op
		asm.JNE.Imm(asm.R2, activeEstablished, "out"),
		asm.LoadImm(asm.R2, 0, asm.DWord),
		asm.FnSockOpsCbFlagsSet.Call(),
	}, false)()
	before := h.bytesOf(rawAt)[0]
	s, server := h.dial(ln)
	h.send(s, server, 12_345)
	s.close()
	if got := h.bytesOf(rawAt)[0] - before; got != 12_345 {
		t.Errorf("%d bytes; want 12345", got)
	}
	if n := h.tcpEntries(); n != 0 {
		t.Errorf("%d closed sockets are in the table", n)
	}
}

// TestTrafficTotal checks that totals never shrink, whatever the kernel no longer has.
func TestTrafficTotal(t *testing.T) {
	const full = 1 << 32
	type count struct{ ended, live, want uint64 }
	for name, steps := range map[string][]count{
		"grows":                              {{0, 10, 10}, {10, 5, 15}, {15, 0, 15}},
		"a socket ends between the reads":    {{0, 10, 10}, {0, 0, 10}, {12, 0, 12}},
		"an entry is evicted":                {{100, 10, 110}, {0, 10, 110}, {3, 10, 113}, {5, 11, 116}},
		"packets overflow 32 bits":           {{7, full - 10, full - 3}, {7, 5, full - 3}, {7, 6, full + 13}, {13, 0, full + 13}},
		"a large one ends between the reads": {{0, full - 10, full - 10}, {0, 0, full - 10}, {full - 5, 0, full - 5}},
	} {
		var total ebpf.TrafficTotal
		for i, s := range steps {
			if got := total.Update([5]uint64{4: s.ended}, [5]uint64{4: s.live}); got[4] != s.want {
				t.Errorf("%s, step %d: %d; want %d", name, i, got[4], s.want)
			}
		}
	}
}

// TestCutDatagramsAreNotCounted checks that datagrams that are dropped are not counted as
// sent.
func TestCutDatagramsAreNotCounted(t *testing.T) {
	h := newHost(t)
	h.CountBytes = true
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	s.ask(netip.AddrPort{})
	if n := h.bytesOf(dns); n[0] != 1 || n[1] == 0 {
		t.Errorf("%v bytes; want 1 sent, and a reply", n)
	}
	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("the socket is cut", func() bool { return h.d.Cutting() })
	before := h.bytesOf(dns)[0]
	for range 5 {
		if _, err := unix.Write(s.fd, []byte("?")); err != unix.EPERM {
			t.Errorf("a datagram to an endpoint that is gone: %v; want EPERM", err)
		}
	}
	if n := h.bytesOf(dns)[0]; n != before {
		t.Errorf("%d dropped bytes were counted", n-before)
	}
	s.connect(dns)
	h.eventually("nothing is cut", func() bool { return !h.d.Cutting() })
	s.ask(netip.AddrPort{})
	if n := h.bytesOf(dns)[0]; n != before+1 {
		t.Errorf("%d bytes; want %d", n, before+1)
	}
}
