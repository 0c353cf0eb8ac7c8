package traffic

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	probe "sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// useSockets creates the cgroup and the BPF file system that mode ebpf needs, and skips the test on
// kernels before 6.2.
func (n *testNode) useSockets() {
	n.Helper()
	var name unix.Utsname
	n.check(unix.Uname(&name))
	release := unix.ByteSliceToString(name.Release[:])
	if version.MustParseGeneric(release).LessThan(version.MustParseGeneric("6.2")) {
		n.Skipf("Linux %s lacks what mode ebpf needs, which is there from 6.2 on", release)
	}
	cgroups, err := probe.NewCgroups()
	n.check(err)
	n.Cleanup(func() { n.check(cgroups.Close()) })
	n.ebpf.CgroupRoot, err = cgroups.Add()
	n.check(err)
	root, err := cgroups.MountBPF()
	n.check(err)
	n.ebpf.BPFRoot = filepath.Join(root, "sluice")
}

// warm connects until connections of the client are translated at their sockets, and then flushes
// connection tracking, so that earlier ones are not counted there.
func (n *testNode) warm() {
	n.Helper()
	for _, at := range []netip.AddrPort{vipAt, vipAt6} {
		translated := false
		for end := time.Now().Add(patience); !translated; {
			if time.Now().After(end) {
				n.Fatalf("connections to %v are never translated at the socket", at)
			}
			n.finish(n.exchange(n.client, netip.Addr{}, at))
			n.check(n.plane.(proxy.Metered).Traffic(n.Context(), func(s proxy.Sample) {
				translated = translated || s.Frontend == at && s.Endpoint.IsValid()
			}))
		}
	}
	n.forget()
}

// wantExactly waits for the counts of a row, without headers, which only sockets can count exactly.
func (n *testNode) wantExactly(key proxy.PortKey, want proxy.Traffic) {
	n.Helper()
	n.eventually(func() string {
		got, endpoints, _ := n.count.of(key)
		is := got.Traffic
		if want.Packets == [2]uint64{} {
			is.Packets = want.Packets
		}
		switch {
		case is != want:
			return fmt.Sprintf("%v: %+v; want %+v", key, got.Traffic, want)
		case len(endpoints) != 1:
			return fmt.Sprintf("%v: endpoints %+v; want one", key, endpoints)
		default:
			return ""
		}
	})
}

// client is where a connection comes from, and the family of its socket.
type client struct {
	name   string
	from   *lab.Host
	family int
	to     netip.AddrPort
}

func (n *testNode) clients() []client {
	return []client{
		{"a pod, IPv4", n.client, unix.AF_INET, rawAt},
		{"a pod, IPv6", n.client, unix.AF_INET6, rawAt6},
		{"a pod, IPv4 by an IPv6 socket", n.client, unix.AF_INET6, rawAt},
		{"the node", n.Node(), unix.AF_INET, rawAt},
	}
}

func (c client) row(p proxy.Protocol) proxy.PortKey {
	return key("raw", p, proxy.FamilyOf(c.to.Addr()))
}

func (c client) sockaddr() unix.Sockaddr {
	if c.family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(c.to.Port()), Addr: c.to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(c.to.Port()), Addr: c.to.Addr().As16()}
}

// socket opens a client's socket.
func (n *testNode) socket(c client, kind int) (fd int) {
	n.Helper()
	n.check(c.from.Do(func() (err error) {
		fd, err = unix.Socket(c.family, kind|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	return fd
}

// connect connects a client's socket.
func (n *testNode) connect(c client, kind int) net.Conn {
	n.Helper()
	fd := n.socket(c, kind)
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Connect(fd, c.sockaddr())
	}
	if err != unix.EISCONN {
		n.check(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	conn, err := net.FileConn(f)
	n.check(err)
	n.Cleanup(func() { conn.Close() })
	n.check(conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// wires are connections of which the test has both ends.
type wires struct {
	*testNode
	servers map[netip.AddrPort]net.Listener
}

func newWires(t *testing.T) *wires {
	w := &wires{newNode(t, config.EBPF), map[netip.AddrPort]net.Listener{}}
	for frontend, at := range map[netip.AddrPort]netip.AddrPort{rawAt: rawPodAt, rawAt6: rawPodAt6} {
		w.check(w.pod.Do(func() (err error) {
			w.servers[frontend], err = net.Listen("tcp", at.String())
			return err
		}))
		t.Cleanup(func() { w.servers[frontend].Close() })
	}
	return w
}

// dial opens a connection.
func (w *wires) dial(c client) (client, server *net.TCPConn) {
	w.Helper()
	conn := w.connect(c, unix.SOCK_STREAM)
	return conn.(*net.TCPConn), w.accept(c.to)
}

func (w *wires) accept(at netip.AddrPort) *net.TCPConn {
	w.Helper()
	accepted, err := w.servers[at].Accept()
	w.check(err)
	w.Cleanup(func() { accepted.Close() })
	w.check(accepted.SetDeadline(time.Now().Add(patience)))
	return accepted.(*net.TCPConn)
}

// move sends bytes from one end to the other.
func (w *wires) move(from, to net.Conn, bytes int) {
	w.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, bytes))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, to, int64(bytes))
	w.check(err)
	w.check(<-sent)
}

// endings are the ways in which a connection can end.
var endings = map[string]func(w *wires, client, server *net.TCPConn){
	"the client closes first": func(w *wires, client, server *net.TCPConn) {
		w.check(client.CloseWrite())
		_, err := io.Copy(io.Discard, server)
		w.check(err)
		w.check(server.Close())
		w.check(client.Close())
	},
	"the server closes first": func(w *wires, client, server *net.TCPConn) {
		w.check(server.Close())
		_, err := io.Copy(io.Discard, client)
		w.check(err)
		w.check(client.Close())
	},
	"the client resets it": func(w *wires, client, _ *net.TCPConn) {
		w.check(client.SetLinger(0))
		w.check(client.Close())
	},
	"the server resets it": func(w *wires, client, server *net.TCPConn) {
		w.check(server.SetLinger(0))
		w.check(server.Close())
		_, _ = io.Copy(io.Discard, client)
		w.check(client.Close())
	},
	"the server has gone, the client does not look": func(w *wires, client, server *net.TCPConn) {
		w.check(server.Close())
		w.check(client.Close())
	},
}

// TestSocketBytes counts exactly what connections carry, while they are open and after they have
// ended, in whatever way.
func TestSocketBytes(t *testing.T) {
	w := newWires(t)
	want := map[proxy.PortKey]proxy.Traffic{}
	for _, c := range w.clients() {
		for name, end := range endings {
			t.Logf("%s, %s", c.name, name)
			expect := func(active int, in, out uint64) {
				t.Helper()
				n := want[c.row(proxy.TCP)]
				n.Active, n.Bytes = uint64(active), [2]uint64{n.Bytes[0] + in, n.Bytes[1] + out}
				want[c.row(proxy.TCP)] = n
				w.wantExactly(c.row(proxy.TCP), n)
			}
			client, server := w.dial(c)
			n := want[c.row(proxy.TCP)]
			n.Connections++
			want[c.row(proxy.TCP)] = n
			w.move(client, server, 123_457)
			w.move(server, client, 345_678)
			expect(1, 123_457, 345_678)
			w.move(client, server, 1)
			expect(1, 1, 0)
			w.move(server, client, 100_000)
			end(w, client, server)
			expect(0, 0, 100_000)
		}
	}
}

// TestSocketIsClosedEarly checks that what was written before a socket is closed is counted when it
// arrives.
func TestSocketIsClosedEarly(t *testing.T) {
	w := newWires(t)
	c := w.clients()[0]
	client, server := w.dial(c)
	const bytes = 50_000
	w.check(client.SetWriteBuffer(4 * bytes))
	w.check(server.SetReadBuffer(1)) // so that most of it waits
	_, err := client.Write(make([]byte, bytes))
	w.check(err)
	w.check(client.Close())
	got, err := io.Copy(io.Discard, server)
	w.check(err)
	w.check(server.Close())
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Connections: 1, Bytes: [2]uint64{uint64(got), 0}})
	if got != bytes {
		t.Errorf("%d bytes arrived; want %d", got, bytes)
	}
}

// clientProcess names the address that a process of the test connects to.
const clientProcess = "TRAFFIC_CLIENT"

// TestClientProcess is a process that sends something and reads nothing.
func TestClientProcess(t *testing.T) {
	to := os.Getenv(clientProcess)
	if to == "" {
		return
	}
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	<-time.After(patience)
}

// TestSocketOfKilledProcess checks the counts if the kernel resets a connection because the process
// had not read all data.
func TestSocketOfKilledProcess(t *testing.T) {
	w := newWires(t)
	c := w.clients()[0]
	cmd := exec.Command(os.Args[0], "-test.run=^TestClientProcess$")
	cmd.Env = append(os.Environ(), clientProcess+"="+rawAt.String())
	w.check(w.client.Start(cmd))
	server := w.accept(rawAt)
	_, err := io.CopyN(io.Discard, server, 100_000)
	w.check(err)
	_, err = server.Write(make([]byte, 5_000))
	w.check(err)
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Connections: 1, Active: 1, Bytes: [2]uint64{100_000, 5_000}})
	w.check(cmd.Process.Kill())
	_ = cmd.Wait()
	if _, err := io.Copy(io.Discard, server); err == nil {
		t.Error("the connection was not reset")
	}
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Connections: 1, Bytes: [2]uint64{100_000, 5_000}})
}

// TestSocketsOutliveTheDaemon checks that the next daemon counts what connections carry from then
// on, and nothing twice.
func TestSocketsOutliveTheDaemon(t *testing.T) {
	w := newWires(t)
	c := w.clients()[0]
	ended, endedServer := w.dial(c)
	w.move(ended, endedServer, 10_000)
	client, server := w.dial(c)
	w.move(client, server, 20_000)
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Connections: 2, Active: 2, Bytes: [2]uint64{30_000, 0}})
	w.close()
	endings["the client closes first"](w, ended, endedServer)
	w.move(server, client, 30_000)
	w.open()
	w.collect()
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Active: 1})
	w.move(client, server, 40_000)
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Active: 1, Bytes: [2]uint64{40_000, 0}})
	w.move(server, client, 50_000)
	endings["the client resets it"](w, client, server)
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Bytes: [2]uint64{40_000, 50_000}})
}

// TestEndpointOfSocketsIsRemoved checks that a removed endpoint is no longer reported, while its
// Service keeps the counts and gets what open connections still carry.
func TestEndpointOfSocketsIsRemoved(t *testing.T) {
	w := newWires(t)
	c := w.clients()[0]
	client, server := w.dial(c)
	w.move(client, server, 10_000)
	w.wantExactly(c.row(proxy.TCP), proxy.Traffic{Connections: 1, Active: 1, Bytes: [2]uint64{10_000, 0}})
	step := &proxy.Delta{}
	for _, u := range w.rows.Upserts {
		if u.New.Key == c.row(proxy.TCP) {
			other := *u.New
			other.Cluster = []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.12:8081")}}
			other.Local = nil
			step.Upserts = []proxy.Upsert{{Old: u.New, New: &other}}
		}
	}
	w.check(w.Node().Do(func() error { return proxytest.Apply(t.Context(), w.plane, step) }))
	w.count.Applied(w.node, step)
	w.move(client, server, 20_000)
	endings["the client closes first"](w, client, server)
	w.eventually(func() string {
		got, endpoints, _ := w.count.of(c.row(proxy.TCP))
		if got.Bytes != [2]uint64{30_000, 0} || got.Active != 0 || len(endpoints) != 0 {
			return fmt.Sprintf("%+v, endpoints %+v; want 30,000 bytes in and no endpoint", got, endpoints)
		}
		return ""
	})
}

// TestSocketDatagrams counts exactly what UDP sockets send and receive: connected, unconnected, and
// with segmentation by the kernel.
func TestSocketDatagrams(t *testing.T) {
	n := newNode(t, config.EBPF)
	servers := map[netip.AddrPort]net.PacketConn{}
	for frontend, at := range map[netip.AddrPort]netip.AddrPort{rawAt: rawPodAt, rawAt6: rawPodAt6} {
		n.check(n.pod.Do(func() (err error) {
			servers[frontend], err = net.ListenPacket("udp", at.String())
			return err
		}))
		defer servers[frontend].Close()
		n.check(servers[frontend].SetDeadline(time.Now().Add(patience)))
	}
	const length, answer, times = 1_000, 333, 5
	want := map[proxy.PortKey]proxy.Traffic{}
	for _, c := range n.clients() {
		exchange := func(send func([]byte) error, receive func([]byte) error, length, packets int) {
			t.Helper()
			var from net.Addr
			n.check(send(make([]byte, length)))
			for range packets {
				var err error
				_, from, err = servers[c.to].ReadFrom(make([]byte, 2*length))
				n.check(err)
			}
			_, err := servers[c.to].WriteTo(make([]byte, answer), from)
			n.check(err)
			n.check(receive(make([]byte, length)))
			is := want[c.row(proxy.UDP)]
			is.Bytes = [2]uint64{is.Bytes[0] + uint64(length), is.Bytes[1] + answer}
			is.Packets = [2]uint64{is.Packets[0] + uint64(packets), is.Packets[1] + 1}
			want[c.row(proxy.UDP)] = is
		}
		began := func() {
			is := want[c.row(proxy.UDP)]
			is.Connections, is.Active = is.Connections+1, is.Active+1
			want[c.row(proxy.UDP)] = is
		}
		t.Logf("%s, connected", c.name)
		conn := n.connect(c, unix.SOCK_DGRAM).(*net.UDPConn)
		began()
		write := func(b []byte) error { _, err := conn.Write(b); return err }
		read := func(b []byte) error { _, err := conn.Read(b); return err }
		for range times {
			exchange(write, read, length, 1)
		}
		n.wantExactly(c.row(proxy.UDP), want[c.row(proxy.UDP)])
		raw, err := conn.SyscallConn()
		n.check(err)
		n.check(raw.Control(func(fd uintptr) { n.check(unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, length)) }))
		exchange(write, read, 3*length, 3)
		n.wantExactly(c.row(proxy.UDP), want[c.row(proxy.UDP)])

		t.Logf("%s, not connected", c.name)
		fd := n.socket(c, unix.SOCK_DGRAM)
		defer unix.Close(fd)
		wait := unix.NsecToTimeval(int64(patience))
		n.check(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
		began()
		for range times {
			exchange(func(b []byte) error { return unix.Sendto(fd, b, 0, c.sockaddr()) },
				func(b []byte) error { _, _, err := unix.Recvfrom(fd, b, 0); return err }, length, 1)
		}
		n.wantExactly(c.row(proxy.UDP), want[c.row(proxy.UDP)])
	}
}
