package ebpf_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// host is a node with a client and endpoints, and the dataplane on it.
type host struct {
	*testing.T
	mode.Settings
	lab    *lab.Lab
	client *lab.Host
	d      *ebpf.Dataplane
	stop   func() // stops and closes the dataplane
	node   *proxy.Node
}

var (
	web, dns, alias = netip.MustParseAddrPort("172.30.0.1:80"), netip.MustParseAddrPort("172.30.0.1:53"), netip.MustParseAddrPort("172.30.0.2:53")
	pods            = []netip.AddrPort{
		netip.MustParseAddrPort("10.0.0.11:5300"), netip.MustParseAddrPort("10.0.0.12:5300"), netip.MustParseAddrPort("10.0.0.13:5300"),
	}
)

// newHost makes a host, on which the dataplane is not open yet.
func newHost(t *testing.T) *host {
	t.Helper()
	lab.Require(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{T: t}
	h.cleanup(cgroups.Close)
	h.MasqueradeBit = 14
	if h.EBPF.CgroupRoot, err = cgroups.Add(); err != nil {
		t.Fatal(err)
	}
	h.EBPF.BPFRoot = filepath.Join(bpffs(t), "sluice")
	h.lab = lab.ForTest(t, lab.Config{Cgroup: h.EBPF.CgroupRoot})
	h.client = h.pod("10.0.0.10")
	for _, a := range pods {
		at := h.pod(a.Addr().String())
		for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			l, err := at.Listen(p, a)
			if err != nil {
				t.Fatal(err)
			}
			h.cleanup(l.Close)
		}
	}
	h.node = &proxy.Node{
		Name: "here", LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")},
	}
	return h
}

func (h *host) cleanup(f func() error) {
	h.Cleanup(func() {
		if err := f(); err != nil {
			h.Error(err)
		}
	})
}

func (h *host) pod(addr string) *lab.Host {
	h.Helper()
	p, err := h.lab.AddPod(addr, netip.MustParseAddr(addr))
	if err != nil {
		h.Fatal(err)
	}
	return p
}

// start opens and runs the dataplane. Limits replace the sizes of maps, by name.
func (h *host) start(limits map[string]uint32) {
	h.Helper()
	err := h.lab.Node().Do(func() (err error) {
		h.d, err = ebpf.OpenWithLimits(h.Context(), h.Settings, limits)
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	d := h.d
	go func() { ended <- d.Run(ctx) }()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-ended, d.Close()); err != nil {
			h.Error(err)
		}
	}
	h.Cleanup(h.stop)
}

// row returns a Service port with a ClusterIP and local endpoints.
func row(name string, p proxy.Protocol, at netip.AddrPort, to ...netip.AddrPort) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:             proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: name, Protocol: p}},
		Frontends:       []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: at}},
		UsableSomewhere: len(to) > 0,
	}
	for _, a := range to {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: a, Local: true})
	}
	sp.Local = sp.Cluster
	return sp
}

// sync makes a full sync to these rows.
func (h *host) sync(rows ...*proxy.ServicePort) error {
	s := proxy.NewState()
	s.Node = h.node
	for _, r := range rows {
		s.Rows[r.Key] = r
	}
	return h.lab.Node().Do(func() error { return proxytest.Sync(h.Context(), h.d, s) })
}

// must fails the test at once if there is an error.
func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// serve makes a full sync to these rows, and waits until connections to the first are
// translated at the socket.
func (h *host) serve(rows ...*proxy.ServicePort) {
	h.Helper()
	h.must(h.sync(rows...))
	h.warm(rows[0].Key.Protocol, rows[0].Frontends[0].Addr)
}

// change adds or changes one row.
func (h *host) change(to *proxy.ServicePort) {
	h.Helper()
	step := &proxy.Delta{Upserts: []proxy.Upsert{{New: to}}}
	h.must(h.lab.Node().Do(func() error { return proxytest.Apply(h.Context(), h.d, step) }))
}

// eventually polls until a condition holds.
func (h *host) eventually(what string, ok func() bool) {
	h.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			h.Fatalf("never: %s", what)
		}
	}
}

// socket is a socket of a client.
type socket struct {
	h  *host
	fd int
}

// socket creates a socket on a host, and connects it unless the address is invalid.
func (h *host) socket(in *lab.Host, p proxy.Protocol, to netip.AddrPort) *socket {
	h.Helper()
	kind := unix.SOCK_DGRAM
	if p == proxy.TCP {
		kind = unix.SOCK_STREAM
	}
	s := &socket{h: h}
	err := in.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.NsecToTimeval(int64(5 * time.Second))
		return errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
	})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(s.close)
	if to.IsValid() {
		s.connect(to)
	}
	return s
}

func (s *socket) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	four, ok := a.(*unix.SockaddrInet4)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port))
}

func (s *socket) connect(to netip.AddrPort) {
	s.h.Helper()
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Connect(s.fd, sockaddr(to))
	}
	if err != nil && err != unix.EISCONN {
		s.h.Fatalf("connect to %v: %v", to, err)
	}
}

func (s *socket) disconnect() {
	s.h.Helper()
	var none unix.RawSockaddrAny // an address of no family ends the connection
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none.Addr)); errno != 0 {
		s.h.Fatal(errno)
	}
}

// peer returns what getpeername says.
func (s *socket) peer() netip.AddrPort {
	s.h.Helper()
	a, err := unix.Getpeername(s.fd)
	if err != nil {
		s.h.Fatal(err)
	}
	return addrPort(a)
}

// receive returns which endpoint replied, and the source address of the reply.
func (s *socket) receive() (by, from netip.AddrPort) {
	s.h.Helper()
	var buf [128]byte
	n, at, err := 0, unix.Sockaddr(nil), error(unix.EINTR)
	for err == unix.EINTR {
		n, at, err = unix.Recvfrom(s.fd, buf[:], 0)
	}
	if err != nil {
		s.h.Fatalf("receive: %v", err)
	}
	own, _, _ := strings.Cut(string(buf[:n]), " ")
	return netip.MustParseAddrPort(own), addrPort(at)
}

// ask sends a query and receives the reply. If the address is invalid, the socket must be
// connected.
func (s *socket) ask(to netip.AddrPort) (by, from netip.AddrPort) {
	s.h.Helper()
	if err := s.send(to); err != nil {
		s.h.Fatalf("send to %v: %v", to, err)
	}
	return s.receive()
}

func (s *socket) send(to netip.AddrPort) error {
	if to.IsValid() {
		return unix.Sendto(s.fd, []byte("?"), 0, sockaddr(to))
	}
	_, err := unix.Write(s.fd, []byte("?"))
	return err
}

func (s *socket) translated() bool {
	s.h.Helper()
	yes, err := s.h.d.Translated(s.fd)
	if err != nil {
		s.h.Fatal(err)
	}
	return yes
}

// warm waits until connections of the client are translated at the socket.
func (h *host) warm(p proxy.Protocol, to netip.AddrPort) {
	h.Helper()
	h.eventually("connections are translated at the socket", func() bool {
		s := h.socket(h.client, p, to)
		defer s.close()
		return s.translated()
	})
}

// wantFrom checks which endpoint replied, and the source address of the reply.
func (h *host) wantFrom(what string, by, from, wantBy, wantFrom netip.AddrPort) {
	h.Helper()
	if by != wantBy || from != wantFrom {
		h.Errorf("%s: reply by %v from %v; want by %v from %v", what, by, from, wantBy, wantFrom)
	}
}

// TestClientIsAnEndpoint checks that connections of a pod that is an endpoint itself are
// translated at the socket if they go to others, and by the rules if they go to the pod. An
// unconnected socket keeps its endpoint when endpoints are added.
func TestClientIsAnEndpoint(t *testing.T) {
	h := newHost(t)
	self := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.10"), pods[0].Port())
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		l, err := h.client.Listen(p, self)
		if err != nil {
			t.Fatal(err)
		}
		h.cleanup(l.Close)
	}
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, self, pods[0], pods[1]), row("web", proxy.TCP, web, self, pods[0]))
	type asked struct {
		*socket
		by netip.AddrPort
	}
	var all []asked
	kinds := map[proxy.Protocol]map[bool]int{proxy.TCP: {}, proxy.UDP: {}}
	for range 64 {
		loose, tcp := h.socket(h.client, proxy.UDP, netip.AddrPort{}), h.socket(h.client, proxy.TCP, web)
		by, _ := loose.ask(dns)
		all = append(all, asked{loose, by})
		kinds[proxy.UDP][loose.translated()]++
		kinds[proxy.TCP][tcp.translated()]++
		if by, _ := tcp.receive(); by == self && tcp.translated() || all[len(all)-1].by == self && loose.translated() {
			t.Error("a pod sees itself as its client")
		}
	}
	h.change(row("dns", proxy.UDP, dns, self, pods[0], pods[1], pods[2]))
	for _, s := range all {
		by, from := s.ask(dns)
		h.wantFrom("the same socket", by, from, s.by, dns)
	}
	for p, n := range kinds {
		if n[true] == 0 || n[false] == 0 {
			t.Errorf("%v: %d of 64 were translated at the socket; want some, and some by the rules", p, n[true])
		}
	}
}

// TestServerToServer checks that a datagram from an endpoint to another server that uses the
// same port is not taken for a reply of the Service.
func TestServerToServer(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, netip.AddrPort{})
	h.must(unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(pods[0].Port())}))
	by, from := s.ask(dns)
	h.wantFrom("sent to the Service's address", by, from, pods[0], dns)
	by, from = s.ask(pods[0])
	h.wantFrom("sent to the endpoint's address", by, from, pods[0], pods[0])
	if s.translated() {
		t.Error("the socket was translated")
	}
}

// TestConnectedByTheRules checks that a socket stays with the rules that was connected before
// the programs were attached. It is an IPv6 socket with an IPv4 peer, for which sendmsg
// programs are called with every datagram.
func TestConnectedByTheRules(t *testing.T) {
	h := newHost(t)
	s := &socket{h: h}
	err := h.client.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	wait := unix.NsecToTimeval(int64(5 * time.Second))
	if err := errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Connect(s.fd, &unix.SockaddrInet6{Port: int(dns.Port()), Addr: dns.Addr().As16()})); err != nil {
		t.Fatal(err)
	}
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	if by, _ := s.ask(netip.AddrPort{}); by != pods[0] || s.translated() {
		t.Errorf("%v answered, translated at the socket: %t", by, s.translated())
	}
}

// TestEndpointOfUDPGoes checks that unconnected sockets get another endpoint when theirs is
// gone, that connected ones get an error, and that both keep a draining endpoint.
func TestEndpointOfUDPGoes(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	connected, loose := h.socket(h.client, proxy.UDP, dns), h.socket(h.client, proxy.UDP, netip.AddrPort{})
	by, from := connected.ask(netip.AddrPort{})
	h.wantFrom("connected", by, from, pods[0], dns)
	by, from = loose.ask(dns)
	h.wantFrom("not connected", by, from, pods[0], dns)
	if !connected.translated() || !loose.translated() {
		t.Fatal("a socket was translated by the rules")
	}

	drains := row("dns", proxy.UDP, dns, pods[1])
	drains.Draining = pods[:1]
	h.change(drains)
	for range 3 {
		by, from = connected.ask(netip.AddrPort{})
		h.wantFrom("connected, its endpoint is draining", by, from, pods[0], dns)
		by, from = loose.ask(dns)
		h.wantFrom("not connected, its endpoint is draining", by, from, pods[0], dns)
	}

	began := time.Now()
	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("the connected socket is cut", func() bool {
		_, err := unix.Write(connected.fd, []byte("?"))
		return errors.Is(err, unix.EPERM)
	})
	t.Logf("cut %v after the change", time.Since(began))
	by, from = loose.ask(dns)
	h.wantFrom("not connected, its endpoint is gone", by, from, pods[1], dns)
	fresh := h.socket(h.client, proxy.UDP, dns)
	by, from = fresh.ask(netip.AddrPort{})
	h.wantFrom("newly connected", by, from, pods[1], dns)
	connected.connect(dns)
	h.eventually("replies to what was sent before are read", func() bool { by, from = connected.ask(netip.AddrPort{}); return by == pods[1] })
	h.eventually("nothing is cut", func() bool { return !h.d.Cutting() })
}

// TestCutEndsWhileRoutesChange checks that the program that cuts sockets is detached when
// none is left, even if addresses or routes change all the time.
func TestCutEndsWhileRoutesChange(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("the socket is cut", h.d.Cutting)
	h.inBackground(func(ctx context.Context) error {
		for tick := time.Tick(50 * time.Millisecond); ctx.Err() == nil; <-tick {
			err := h.lab.Node().Do(func() error {
				return errors.Join(exec.Command("ip", "route", "add", "10.99.0.0/24", "dev", "lo").Run(),
					exec.Command("ip", "route", "del", "10.99.0.0/24", "dev", "lo").Run())
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.close()
	h.eventually("nothing is cut", func() bool { return !h.d.Cutting() })
}

// TestRoutesAreNotForeignChanges checks that rows follow a route of the node by which its
// sockets get another source address, and that this counts neither as a change by another
// process nor as a repair.
func TestRoutesAreNotForeignChanges(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...)}
	h.serve(rows...)
	h.d.Writes()
	needSync := make(chan struct{}, 1)
	h.inBackground(func(ctx context.Context) error {
		return h.d.Watch(ctx, func() {
			select {
			case needSync <- struct{}{}:
			default:
			}
		}, func(what string) { t.Errorf("taken for a change by another process: %s", what) })
	})
	h.must(h.lab.Node().Bind(netip.MustParseAddr("10.9.9.9")))
	h.must(h.lab.Node().Do(func() error {
		return exec.Command("ip", "route", "add", "172.30.0.0/24", "dev", "lo", "src", "10.9.9.9").Run()
	}))
	h.eventually("rows are written again", func() bool {
		select {
		case <-needSync:
			h.must(h.sync(rows...))
		default:
		}
		return h.d.Writes() > 0
	})
	if n := h.d.Rewritten().Objects; n != 0 {
		t.Errorf("%d objects count as repaired, want none", n)
	}
}

// TestConnectedSocketNamesDestination checks a connected socket whose datagrams also name the
// frontend as their destination: they go to the endpoint that it is connected to. When that is
// gone, only datagrams to it are dropped.
func TestConnectedSocketNamesDestination(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	named, left := h.socket(h.client, proxy.UDP, dns), h.socket(h.client, proxy.UDP, dns)
	by, from := named.ask(dns)
	h.wantFrom("connected, with a destination", by, from, pods[0], dns)
	if !named.translated() || !left.translated() {
		t.Fatal("a socket was translated by the rules")
	}
	left.disconnect()
	by, from = left.ask(pods[1])
	h.wantFrom("disconnected", by, from, pods[1], pods[1])

	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("the connected socket is cut", func() bool {
		return errors.Is(named.send(dns), unix.EPERM)
	})
	if err := named.send(pods[2]); err != nil {
		t.Errorf("a datagram to another address is refused: %v", err)
	}
	for range 3 {
		by, from = left.ask(pods[2])
		h.wantFrom("disconnected, its endpoint is gone", by, from, pods[2], pods[2])
	}
	named.connect(dns)
	h.eventually("replies to what was sent before are read", func() bool { by, from = named.ask(dns); return by == pods[1] })
	h.wantFrom("connected again", by, from, pods[1], dns)
}

// TestSlotMoves checks that a socket keeps its endpoint when that moves to another slot.
func TestSlotMoves(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods...))
	connected, loose := map[netip.AddrPort]*socket{}, map[netip.AddrPort]*socket{}
	h.eventually("every endpoint has a socket of each kind", func() bool {
		c, l := h.socket(h.client, proxy.UDP, dns), h.socket(h.client, proxy.UDP, netip.AddrPort{})
		by, _ := c.ask(netip.AddrPort{})
		connected[by] = c
		by, _ = l.ask(dns)
		loose[by] = l
		return len(connected) == len(pods) && len(loose) == len(pods)
	})
	h.change(row("dns", proxy.UDP, dns, pods[2], pods[1]))
	for _, a := range pods[1:] {
		by, from := connected[a].ask(netip.AddrPort{})
		h.wantFrom("connected", by, from, a, dns)
		by, from = loose[a].ask(dns)
		h.wantFrom("not connected", by, from, a, dns)
	}
	if by, _ := loose[pods[0]].ask(dns); by == pods[0] {
		t.Error("an endpoint that is gone got a datagram")
	}
}

// TestTwoFrontendsOfOneSocket checks that replies have the right source if a socket uses two
// frontends with the same endpoint.
func TestTwoFrontendsOfOneSocket(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]), row("alias", proxy.UDP, alias, pods[0]))
	s := h.socket(h.client, proxy.UDP, netip.AddrPort{})
	for range 3 {
		for _, to := range []netip.AddrPort{dns, alias} {
			by, from := s.ask(to)
			h.wantFrom("sent to "+to.String(), by, from, pods[0], to)
		}
	}
	h.change(row("alias", proxy.UDP, alias, pods[1]))
	for range 3 {
		for i, to := range []netip.AddrPort{dns, alias} {
			by, from := s.ask(to)
			h.wantFrom("sent to "+to.String(), by, from, pods[i], to)
		}
	}
}

// TestThreadsShareASocket checks that all replies are from a Service if several threads send
// the first datagrams of an unconnected socket. Some are lost, because conntrack drops a packet
// if the rules translate two from one port to one endpoint at the same time.
func TestThreadsShareASocket(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods...), row("alias", proxy.UDP, alias, pods...))
	atSocket, answers := 0, 0
	for range 300 {
		s := h.socket(h.client, proxy.UDP, netip.AddrPort{})
		wait := unix.NsecToTimeval(int64(50 * time.Millisecond))
		h.must(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
		var threads sync.WaitGroup
		begin := make(chan struct{})
		asked := []netip.AddrPort{dns, alias, dns, alias}
		for _, to := range asked {
			threads.Go(func() {
				<-begin
				if err := unix.Sendto(s.fd, []byte("?"), 0, sockaddr(to)); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		threads.Wait()
		for range asked {
			_, at, err := unix.Recvfrom(s.fd, make([]byte, 128), 0)
			if from := addrPort(at); err == nil && from != dns && from != alias {
				t.Fatalf("a reply came from %v", from)
			} else if err == nil {
				answers++
			}
		}
		if s.translated() {
			atSocket++
		}
		s.close()
	}
	if t.Logf("%d of 300 sockets were translated, %d of 1200 queries got a reply", atSocket, answers); atSocket < 150 || answers < 600 {
		t.Error("most were translated by the rules, or lost")
	}
}

// TestFrontendMoves checks that unconnected sockets follow a frontend to another Service, and
// that connected ones are cut.
func TestFrontendMoves(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	connected, loose := h.socket(h.client, proxy.UDP, dns), h.socket(h.client, proxy.UDP, netip.AddrPort{})
	connected.ask(netip.AddrPort{})
	loose.ask(dns)
	// The first Service keeps its endpoint, but not this address.
	step := &proxy.Delta{Upserts: []proxy.Upsert{{New: row("dns", proxy.UDP, alias, pods[0])}, {New: row("other", proxy.UDP, dns, pods[1])}}}
	h.must(h.lab.Node().Do(func() error { return proxytest.Apply(t.Context(), h.d, step) }))
	by, from := loose.ask(dns)
	h.wantFrom("not connected", by, from, pods[1], dns)
	h.eventually("the connected socket is cut", func() bool {
		_, err := unix.Write(connected.fd, []byte("?"))
		return errors.Is(err, unix.EPERM)
	})
}

// TestSocketIsConnectedAgain checks that nothing is left of a translation after a socket
// connects to something else.
func TestSocketIsConnectedAgain(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]), row("web", proxy.TCP, web, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	if !s.translated() || s.peer() != dns {
		t.Fatalf("connected to %v; want %v, translated at the socket", s.peer(), dns)
	}
	s.connect(pods[0])
	by, from := s.ask(netip.AddrPort{})
	h.wantFrom("connected to an endpoint itself", by, from, pods[0], pods[0])
	if s.translated() || s.peer() != pods[0] {
		t.Errorf("connected to %v; want %v, not translated", s.peer(), pods[0])
	}
	c := h.socket(h.client, proxy.TCP, web)
	if !c.translated() || c.peer() != web {
		t.Fatalf("connected to %v; want %v, translated at the socket", c.peer(), web)
	}
	c.disconnect()
	c.connect(pods[1])
	if c.translated() || c.peer() != pods[1] {
		t.Errorf("connected to %v; want %v, not translated", c.peer(), pods[1])
	}
}

func bindToDevice(fd int, name string) error { return unix.BindToDevice(fd, name) }

func setMark(fd, mark int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark) }
