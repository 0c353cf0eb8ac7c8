package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/userspace"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

var (
	vip    = netip.MustParseAddrPort("172.30.0.1:80")
	near   = netip.MustParseAddrPort("10.0.0.9:8080")
	other  = netip.MustParseAddrPort("10.0.0.9:8081")
	closed = netip.MustParseAddrPort("10.0.0.9:9")     // nobody listens
	silent = netip.MustParseAddrPort("10.0.0.77:8080") // a pod that has lost its link
	client = netip.MustParseAddr("203.0.113.9")
)

const waitLimit = 20 * time.Second

// testNode is a node with a dataplane that serves a pod's ports.
type testNode struct {
	*testing.T
	lab *lab.Lab
	pod *lab.Host
	d   *userspace.Dataplane
	end func() error
}

// relaySettings have short timeouts, but not too short for a busy machine.
func relaySettings() mode.Relay {
	r := mode.DefaultRelay()
	r.DialTimeout, r.DrainTimeout = time.Second, waitLimit
	return r
}

func newNode(t *testing.T, relay mode.Relay) *testNode {
	t.Helper()
	l := lab.ForTest(t, lab.Config{})
	n := &testNode{T: t, lab: l}
	t.Cleanup(func() {
		if err := n.end(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if n.pod, err = l.AddPod("pod", near.Addr()); err != nil {
		t.Fatal(err)
	}
	n.start(relay)
	return n
}

// must fails the test at once if there is an error.
func (n *testNode) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// start starts a dataplane, perhaps while a former one runs.
func (n *testNode) start(relay mode.Relay) {
	n.Helper()
	err := n.lab.Node().Do(func() (err error) {
		n.d, err = open(n.Context(), n.T, relay)
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(n.Context()))
	ended := make(chan error, 1)
	d := n.d
	go func() { ended <- d.Run(ctx) }()
	n.end = func() error { stop(); return errors.Join(<-ended, d.Close()) }
}

// state returns a state in which the frontend of a protocol has endpoints.
func (n *testNode) state(p proxy.Protocol, endpoints ...netip.AddrPort) *proxy.State {
	sp := &proxy.ServicePort{
		Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Protocol: p}},
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: vip}}, UsableSomewhere: true,
	}
	for _, e := range endpoints {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: e})
	}
	s := proxy.NewState()
	s.Rows[sp.Key] = sp
	return s
}

// serve makes the dataplane forward the frontend of a protocol to endpoints.
func (n *testNode) serve(p proxy.Protocol, endpoints ...netip.AddrPort) {
	n.Helper()
	s := n.state(p, endpoints...)
	n.must(n.lab.Node().Do(func() error { return proxytest.Sync(n.Context(), n.d, s) }))
}

// listen makes the pod call do with each connection to a port.
func (n *testNode) listen(at netip.AddrPort, do func(*net.TCPConn)) {
	n.Helper()
	var l net.Listener
	err := n.pod.Do(func() (err error) {
		l, err = net.Listen("tcp4", at.String())
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go do(c.(*net.TCPConn))
		}
	}()
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() }

func (n *testNode) dial(p proxy.Protocol) net.Conn {
	n.Helper()
	return n.dialAt(p, vip)
}

func (n *testNode) dialAt(p proxy.Protocol, to netip.AddrPort) net.Conn {
	n.Helper()
	c, err := n.lab.Outside().Dial(n.Context(), p, client, to)
	if err != nil {
		n.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(waitLimit))
	n.Cleanup(func() { c.Close() })
	return c
}

// says sends a text and expects it back.
func says(c net.Conn, what string) error {
	if _, err := c.Write([]byte(what)); err != nil {
		return err
	}
	b := make([]byte, len(what))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != what {
		return fmt.Errorf("got %q, want %q", b, what)
	}
	return nil
}

// try makes a connection, which may be reset immediately, and exchanges a text.
func (n *testNode) try(what string) error {
	c, err := n.lab.Outside().Dial(n.Context(), proxy.TCP, client, vip)
	if err != nil {
		return err
	}
	n.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(waitLimit))
	return says(c, what)
}

func (n *testNode) count(metric, label string) float64 {
	return proxytest.Values(n.Context(), n.d, metric)[label]
}

// eventually waits until a condition holds.
func (n *testNode) eventually(what string, is func() bool) {
	n.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !is(); <-tick.C {
		if time.Now().After(end) {
			n.Fatalf("not in time: %s", what)
		}
	}
}

// TestHalfClose keeps the other way open when one is closed, both ways.
func TestHalfClose(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // until the client has closed its way
		_, _ = c.Write(append(all, '!'))
		_ = c.Close()
	})
	n.listen(other, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("hello"))
		_ = c.CloseWrite() // before the client says anything
		all, _ := io.ReadAll(c)
		if string(all) != "late" {
			t.Errorf("after its own end the endpoint got %q", all)
		}
		_ = c.Close()
	})
	n.serve(proxy.TCP, near)
	c := n.dial(proxy.TCP).(*net.TCPConn)
	if _, err := c.Write([]byte("all")); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "all!" {
		t.Errorf("got %q, error %v", got, err)
	}
	n.serve(proxy.TCP, other)
	c = n.dial(proxy.TCP).(*net.TCPConn)
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
		t.Errorf("got %q, error %v", got, err)
	}
	if _, err := c.Write([]byte("late")); err != nil {
		t.Error(err)
	}
	_ = c.CloseWrite()
	n.eventually("no connection is open", func() bool { return n.count("userspace_connections", "TCP") == 0 })
}

// TestResetIsHandedOn tells each side when the other one cut the connection off.
func TestResetIsHandedOn(t *testing.T) {
	n := newNode(t, relaySettings())
	at := make(chan *net.TCPConn, 2)
	n.listen(near, func(c *net.TCPConn) { at <- c })
	n.serve(proxy.TCP, near)
	reset := func(from, to *net.TCPConn) {
		t.Helper()
		_ = from.SetLinger(0)
		_ = from.Close()
		_ = to.SetReadDeadline(time.Now().Add(waitLimit))
		if _, err := to.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("error %v; want a reset", err)
		}
	}
	c := n.dial(proxy.TCP).(*net.TCPConn)
	reset(c, <-at)
	c = n.dial(proxy.TCP).(*net.TCPConn)
	reset(<-at, c)
}

// TestResetWhileBlocked has a client reset its connection while its endpoint does not read, so that
// there are bytes that cannot be copied.
func TestResetWhileBlocked(t *testing.T) {
	n := newNode(t, relaySettings())
	at := make(chan *net.TCPConn, 1)
	n.listen(near, func(c *net.TCPConn) { at <- c })
	n.serve(proxy.TCP, near)
	c := n.dial(proxy.TCP).(*net.TCPConn)
	defer func() { _ = (<-at).Close() }()
	_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = io.Copy(c, zeros{})
	_ = c.SetLinger(0)
	_ = c.Close()
	n.eventually("the connection ends", func() bool { return n.count("userspace_connections", "TCP") == 0 })
}

// addSilent adds a pod that does not reply.
func (n *testNode) addSilent() {
	n.Helper()
	gone, err := n.lab.AddPod("gone", silent.Addr())
	if err != nil {
		n.Fatal(err)
	}
	err = gone.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetDown(eth0))
	})
	if err != nil {
		n.Fatal(err)
	}
}

// TestSmallPipe checks that all data arrives if a socket has more than a pipe can hold, however
// little its pages contain.
func TestSmallPipe(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.addSilent()
	n.serve(proxy.TCP, silent, near)
	const segments, size = 50, 1000
	for range 2 { // one of both is led to the silent endpoint first
		n.must(n.d.UseSmallPipes())
		c := n.dial(proxy.TCP)
		for range segments {
			if _, err := c.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.CopyN(io.Discard, c, segments*size); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUrgentData ends a connection that would stand still.
func TestUrgentData(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.serve(proxy.TCP, near)
	c := n.dial(proxy.TCP)
	n.must(says(c, "hello"))
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) })
	n.must(errors.Join(err, failed))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("error %v; want a reset", err)
	}
	if got := n.count("userspace_refused_clients_total", "TCP urgent data"); got != 1 {
		t.Errorf("%v are counted", got)
	}
}

// TestLastReplyArrives has an endpoint reply and close without reading: the client gets the reply,
// and then the reset.
func TestLastReplyArrives(t *testing.T) {
	n := newNode(t, relaySettings())
	const answer = "too large"
	n.listen(near, func(c *net.TCPConn) {
		_, _ = io.CopyN(io.Discard, c, 1) // so there is more that it does not read
		_, _ = io.WriteString(c, answer)
		_ = c.Close()
	})
	n.serve(proxy.TCP, near)
	for range 20 {
		c := n.dial(proxy.TCP)
		go func() { _, _ = io.Copy(c, zeros{}) }()
		got := make([]byte, len(answer))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != answer {
			t.Errorf("%q, %v", got, err)
		}
		_ = c.Close()
	}
}

// TestAnotherEndpointIsTried when one refuses or is silent, and says how often.
func TestAnotherEndpointIsTried(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.addSilent()
	n.serve(proxy.TCP, closed, silent, near)
	for range 6 {
		n.must(says(n.dial(proxy.TCP), "hello"))
	}
	refused, late := n.count("userspace_failed_dials_total", "refused"), n.count("userspace_failed_dials_total", "timeout")
	if refused == 0 || late == 0 {
		t.Errorf("%v were refused and %v silent; want some of each", refused, late)
	}
	for endpoint, want := range map[netip.AddrPort]float64{closed: refused, silent: late, near: 0} {
		if s, _ := n.sample(proxy.TCP, endpoint); float64(s.Failed) != want || s.Active != 0 && endpoint != near {
			t.Errorf("%v: %+v, want %v failures", endpoint, s, want)
		}
	}
	n.serve(proxy.TCP, closed)
	if err := n.try("hello"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("no endpoint: error %v; want a reset", err)
	}
}

// TestLimitOfConnections refuses clients beyond it, counts them, and serves again later.
func TestLimitOfConnections(t *testing.T) {
	r := relaySettings()
	r.MaxConnections = 3
	n := newNode(t, r)
	n.listen(near, echo)
	n.serve(proxy.TCP, near)
	var open []net.Conn
	for range r.MaxConnections {
		open = append(open, n.dial(proxy.TCP))
		n.must(says(open[len(open)-1], "hello"))
	}
	if err := n.try("hello"); err == nil {
		t.Error("a connection beyond the limit is served")
	}
	if n.count("userspace_refused_clients_total", "limit of connections") == 0 {
		t.Error("nobody was counted")
	}
	_ = open[0].Close()
	n.eventually("there is room again", func() bool { return n.try("hello") == nil })
}

// TestFileLimit lets new connections wait without descriptors, and serves them later. Open ones and
// UDP sessions go on.
func TestFileLimit(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.listen(near, echo)
	n.answerUDP(near)
	s := n.state(proxy.TCP, near)
	maps.Copy(s.Rows, n.state(proxy.UDP, near).Rows)
	n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
	session := n.dial(proxy.UDP)
	n.ask(session)
	first := n.dial(proxy.TCP)
	n.must(says(first, "hello"))
	second := n.dial(proxy.TCP) // to have its descriptor before there are none
	n.must(says(second, "hello"))
	var was unix.Rlimit
	n.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	var waiting int
	err := n.lab.Outside().Do(func() (err error) {
		if waiting, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := errors.Join(unix.SetsockoptInt(waiting, unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.Bind(waiting, &unix.SockaddrInet4{Addr: client.As4()})); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
			return err
		}
		return unix.Connect(waiting, &unix.SockaddrInet4{Addr: vip.Addr().As4(), Port: int(vip.Port())})
	})
	defer unix.Close(waiting)
	n.eventually("the shortage is counted", func() bool { return n.count("userspace_refused_clients_total", "limit of open files") > 0 })
	if again := says(first, "still"); again != nil {
		t.Errorf("an open connection suffers: %v", again)
	}
	began := time.Now()
	for range 20 {
		n.ask(session)
	}
	if took := time.Since(began); took > time.Second { // a pause for each is twice as long
		t.Errorf("20 datagrams of an open session took %v", took)
	}
	n.must(errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)))
	if _, err := unix.Write(waiting, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := unix.Read(waiting, make([]byte, 1)); err != nil || got != 1 {
		t.Errorf("the one that waited got %d bytes, error %v", got, err)
	}
}

// TestRestartBreaksNothing hands open connections to a new dataplane, including half-closed ones
// and those with bytes in a pipe.
func TestRestartBreaksNothing(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	held := make(chan *net.TCPConn, 1)
	n.listen(other, func(c *net.TCPConn) { held <- c })
	n.serve(proxy.TCP, other)
	full := n.dial(proxy.TCP).(*net.TCPConn)
	_ = full.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	sent, _ := io.Copy(full, zeros{}) // until nothing more fits anywhere
	reader := <-held
	n.serve(proxy.TCP, near)
	var open []net.Conn
	for i := range 100 {
		open = append(open, n.dial(proxy.TCP))
		n.must(says(open[i], "before"))
	}
	former := n.end
	n.start(relaySettings())
	n.serve(proxy.TCP, near)
	if err := former(); err == nil {
		t.Error("the former one does not say that it was taken over")
	}
	broken := 0
	for _, c := range open {
		if says(c, "after") != nil {
			broken++
		}
	}
	if broken > 0 {
		t.Errorf("%d of %d connections broke", broken, len(open))
	}
	_ = full.CloseWrite()
	_ = reader.SetReadDeadline(time.Now().Add(waitLimit))
	if got, err := io.Copy(io.Discard, reader); err != nil || got != sent {
		t.Errorf("%d of %d bytes arrived, error %v", got, sent, err)
	}
	_ = reader.Close()
	if err := says(n.dial(proxy.TCP), "new"); err != nil {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestStopServesOpenConnections until they end.
func TestStopServesOpenConnections(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.serve(proxy.TCP, near)
	c := n.dial(proxy.TCP)
	n.must(says(c, "before"))
	ended := make(chan error)
	end := n.end
	n.end = func() error { return nil }
	go func() { ended <- end() }()
	for range 3 {
		n.must(says(c, "draining"))
	}
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSlowReaderBlocksNobody has clients that never read what they asked for.
func TestSlowReaderBlocksNobody(t *testing.T) {
	n := newNode(t, relaySettings())
	n.listen(near, echo)
	n.serve(proxy.TCP, near)
	for range 8 {
		c := n.dial(proxy.TCP)
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.Copy(c, zeros{})
	}
	for range 50 {
		began := time.Now()
		if err := says(n.dial(proxy.TCP), "hello"); err != nil || time.Since(began) > 2*time.Second {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
	}
}

// answerUDP makes the pod reply to datagrams.
func (n *testNode) answerUDP(all ...netip.AddrPort) {
	n.Helper()
	for _, at := range all {
		l, err := n.pod.Listen(proxy.UDP, at)
		if err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() { l.Close() })
	}
}

// ask sends a datagram and returns the reply: who sent it, and to whom.
func (n *testNode) ask(c net.Conn) string {
	n.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		n.Error(err)
		return ""
	}
	return n.read(c)
}

// read returns the next datagram.
func (n *testNode) read(c net.Conn) string {
	n.Helper()
	b := make([]byte, 100)
	got, err := c.Read(b)
	if err != nil {
		n.Error(err)
	}
	return string(b[:got])
}

// TestUDPSessions checks that sessions end when they are silent, when their endpoint is removed,
// and when there are too many.
func TestUDPSessions(t *testing.T) {
	r := relaySettings()
	r.UDPTimeout, r.MaxConnections = 2*time.Second, 4
	n := newNode(t, r)
	n.answerUDP(near, other)
	n.serve(proxy.UDP, near)
	ask := func(c net.Conn, want netip.AddrPort) {
		t.Helper()
		if got, text := n.ask(c), fmt.Sprintf("%v %v\n", want, client); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	c := n.dial(proxy.UDP)
	ask(c, near)
	if open := n.count("userspace_connections", "UDP"); open != 1 {
		t.Errorf("%v sessions; want one", open)
	}
	n.serve(proxy.UDP, other)
	ask(c, other)
	n.eventually("the silent session ends", func() bool { return n.count("userspace_connections", "UDP") == 0 })
	for range 10 {
		ask(n.dial(proxy.UDP), other)
	}
	if open := n.count("userspace_connections", "UDP"); open > 4 {
		t.Errorf("%v sessions; want 4 at most", open)
	}
}

// TestPortIsTaken has processes of the node listen on the numbers of a Service's ports: clients are
// served if the process shares the port, and counted otherwise.
func TestPortIsTaken(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.answerUDP(near)
	options := []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_BROADCAST}
	s := n.state(proxy.UDP, near)
	sp := s.Rows[s.Keys()[0]]
	for i, option := range options {
		at := netip.AddrPortFrom(vip.Addr(), uint16(5353+i))
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ClusterIP, Addr: at})
		err := n.lab.Node().Do(func() error {
			c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1) })
			}}
			l, err := c.ListenPacket(t.Context(), "udp4", fmt.Sprint(":", at.Port()))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
	for i, option := range options {
		c, err := n.lab.Outside().Dial(t.Context(), proxy.UDP, client, sp.Frontends[1+i].Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _ = c.SetDeadline(time.Now().Add(waitLimit)); option != unix.SO_BROADCAST {
			n.ask(c)
		} else if _, err := c.Write([]byte("?")); err != nil {
			t.Error(err)
		}
	}
	n.eventually("the last client is counted", func() bool { return n.count("userspace_refused_clients_total", "no socket for replies") == 1 })
}

// TestProgramsListenOnPortsOfServices lets a program of the node listen on the port of a Service, at
// all addresses, while a client is connected and after it was.
func TestProgramsListenOnPortsOfServices(t *testing.T) {
	n := newNode(t, relaySettings())
	held := make(chan *net.TCPConn, 1)
	n.listen(near, func(c *net.TCPConn) { held <- c })
	n.serve(proxy.TCP, near)
	c := n.dial(proxy.TCP)
	server := <-held
	listen := func(when string) {
		t.Helper()
		err := n.lab.Node().Do(func() error {
			l, err := net.Listen("tcp", fmt.Sprint(":", vip.Port()))
			if err == nil {
				err = l.Close()
			}
			return err
		})
		if err != nil {
			t.Errorf("while a connection is %s: %v", when, err)
		}
	}
	listen("open")
	n.must(server.Close())
	if got, err := io.Copy(io.Discard, c); got != 0 || err != nil {
		t.Errorf("%d bytes arrived, error %v", got, err)
	}
	n.must(c.Close())
	n.eventually("the connection ends", func() bool { return n.count("userspace_connections", "TCP") == 0 })
	listen("in TIME_WAIT") // at the node, where it was closed first
}

// TestPortsOfTheNode checks that sessions keep no process of the node from its port.
func TestPortsOfTheNode(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.answerUDP(near)
	n.serve(proxy.UDP, near)
	for range 200 {
		n.ask(n.dial(proxy.UDP))
	}
	err := n.lab.Node().Do(func() error {
		for port := 11_000; port < 61_000; port += 5 {
			l, err := net.ListenPacket("udp4", fmt.Sprint(":", port))
			if err != nil {
				return err
			}
			l.Close()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMovedFrontend moves an address to another Service: a client's next datagram goes there.
func TestMovedFrontend(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.answerUDP(near, other)
	c := n.dial(proxy.UDP)
	for i, endpoint := range []netip.AddrPort{near, other} {
		s := proxy.NewState()
		for k, at := range []netip.AddrPort{near, other} {
			for key, sp := range n.state(proxy.UDP, at).Rows {
				key.Name += fmt.Sprint(k)
				sp.Key, sp.Frontends[0].Addr = key, netip.AddrPortFrom(vip.Addr().Next(), uint16(81+k))
				if k == i {
					sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: vip})
				}
				s.Rows[key] = sp
			}
		}
		n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
		if got := n.ask(c); !strings.HasPrefix(got, endpoint.String()) {
			t.Errorf("got %q, want %v", got, endpoint)
		}
	}
}

// TestAbsentNeighbour has a client that does not answer ARP: replies to others do not wait for it.
func TestAbsentNeighbour(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.answerUDP(near)
	n.serve(proxy.UDP, near)
	absent := netip.MustParseAddr("198.51.100.9")
	err := n.lab.Node().Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		to := &net.IPNet{IP: absent.AsSlice(), Mask: net.CIDRMask(32, 32)}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
	})
	if err == nil {
		err = n.lab.Outside().Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("8"), 0) })
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.lab.Outside().Dial(t.Context(), proxy.UDP, absent, vip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<20) })
	if errors.Is(err, unix.EPERM) {
		t.Skip("in a user namespace, the buffer of a socket cannot be raised beyond its limit")
	} else if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(600) { // with their headers, twice what a socket may send by default
		if _, err := c.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		n.eventually("all but a few datagrams are relayed", func() bool {
			s, _ := n.sample(proxy.UDP, near)
			return s.Packets[proxy.In]+50 > i
		})
	}
	if got, want := n.ask(n.dial(proxy.UDP)), fmt.Sprintf("%v %v\n", near, client); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRestartKeepsSessions hands UDP sessions to a dataplane with more or fewer workers. A session
// must go to the worker that receives its client's datagrams, or it would begin anew.
func TestRestartKeepsSessions(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	n := newNode(t, relaySettings())
	n.answerUDP(near, other)
	n.serve(proxy.UDP, near, other)
	const many = 50
	had := map[net.Conn]string{}
	for range many {
		c := n.dial(proxy.UDP)
		had[c] = n.ask(c)
	}
	for _, processors := range []int{8, 4, 12} {
		runtime.GOMAXPROCS(processors)
		former := n.end
		n.start(relaySettings())
		n.serve(proxy.UDP, near, other)
		if err := former(); err == nil {
			t.Error("the former one does not say that it was taken over")
		}
		moved := 0
		for c, before := range had {
			if n.ask(c) != before {
				moved++
			}
		}
		if open := n.count("userspace_connections", "UDP"); moved > 0 || open != many {
			t.Errorf("with %d processors, %d of %d sessions moved, %v are open", processors, moved, many, open)
		}
	}
}

// TestPathMTU has a client download across a link with a smaller MTU than its own, which only the
// ICMP errors of the router before it tell.
func TestPathMTU(t *testing.T) {
	n := newNode(t, relaySettings())
	const size, mtu, table = 1 << 20, 1280, 100
	n.listen(near, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, size)); _ = c.Close() })
	n.serve(proxy.TCP, near)
	err := n.lab.Outside().Do(func() error { // packets of the node to the client take a turn
		to := &net.IPNet{IP: client.AsSlice(), Mask: net.CIDRMask(32, 32)}
		narrow := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "narrow", MTU: mtu, TxQLen: -1}, PeerName: "peer"}
		if err := netlink.LinkAdd(narrow); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(narrow.PeerName)
		if err != nil {
			return err
		}
		before, after := netlink.NewRule(), netlink.NewRule()
		before.IifName, before.Dst, before.Table, before.Priority = "eth0", to, table, 1
		after.IifName, after.Table, after.Priority = narrow.PeerName, unix.RT_TABLE_LOCAL, 2
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv4/ip_early_demux", []byte("0"), 0), // what has a socket here is not forwarded
			netlink.LinkSetUp(narrow), netlink.LinkSetUp(peer),
			netlink.AddrAdd(narrow, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: to.Mask}}), // of the router
			netlink.NeighSet(&netlink.Neigh{LinkIndex: narrow.Index, State: netlink.NUD_PERMANENT, IP: to.IP, HardwareAddr: peer.Attrs().HardwareAddr}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: narrow.Index, Dst: to, Table: table}),
			netlink.RuleAdd(before), netlink.RuleAdd(after))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, n.dial(proxy.TCP)); got != size || err != nil {
		t.Errorf("%d of %d bytes, error %v", got, size, err)
	}
}

// TestUDPRefused ends the session of an endpoint that does not listen, also if that sends its ICMP
// error to the client's address.
func TestUDPRefused(t *testing.T) {
	n := newNode(t, relaySettings())
	six := netip.MustParseAddrPort("[fd00:10::9]:9")
	if _, err := n.lab.AddPod("six", six.Addr()); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		kind   proxy.Kind
		at, to netip.AddrPort
		from   netip.Addr
	}{
		{proxy.ClusterIP, vip, closed, client},
		{proxy.LoadBalancer, vip, closed, client},
		{proxy.LoadBalancer, netip.MustParseAddrPort("[fd00:30::1]:80"), six, netip.MustParseAddr("2001:db8:99::9")},
	} {
		s := n.state(proxy.UDP, tt.to)
		sp := s.Rows[s.Keys()[0]]
		sp.Frontends, sp.External, sp.Local = []proxy.Frontend{{Kind: tt.kind, Addr: tt.at}}, proxy.ScopeLocal, sp.Cluster
		sp.Key.Family = proxy.FamilyOf(tt.from)
		s = proxy.NewState()
		s.Rows[sp.Key] = sp
		n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, s) }))
		c, err := n.lab.Outside().Dial(t.Context(), proxy.UDP, tt.from, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		n.eventually("the refusal is counted", func() bool { return n.count("userspace_failed_dials_total", "refused") == float64(i+1) })
		n.eventually("the session ends", func() bool { return n.count("userspace_connections", "UDP") == 0 })
	}
}

// TestIdleConnections prints the cost of thousands of idle connections.
func TestIdleConnections(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	many := uint64(min(5000, files.Cur/8-10)) // both ends are in this process, too
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	n.listen(near, func(*net.TCPConn) {})
	n.serve(proxy.TCP, near)
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	var held []net.Conn
	before := memory()
	for range many {
		held = append(held, n.dial(proxy.TCP))
	}
	n.eventually("all are open", func() bool { return n.count("userspace_connections", "TCP") == float64(many) })
	t.Logf("memory of both ends and the relay for each of %d idle connections: %d bytes", len(held), (memory()-before)/many)
}
