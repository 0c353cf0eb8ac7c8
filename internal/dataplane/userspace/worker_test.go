package userspace

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// oneWorker returns a server with one worker.
func oneWorker(t *testing.T) *server {
	t.Helper()
	s, err := newServer(mode.DefaultRelay(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s
}

// loneWorker returns a worker of a server that has nothing else.
func loneWorker(t *testing.T) *worker {
	t.Helper()
	w, err := (&server{}).newWorker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll([]int{w.epoll, w.wake}) })
	return w
}

// TestWorkersShare checks that each worker has listeners of both protocols, so that the load is
// spread.
func TestWorkersShare(t *testing.T) {
	for workers := 1; workers <= 4; workers++ {
		s, err := newServer(mode.DefaultRelay(), nil, workers)
		if err != nil {
			t.Fatal(err)
		}
		for range workers {
			s.add(&listener{Protocol: proxy.TCP, fd: -2})
			s.add(&listener{Protocol: proxy.UDP, fd: -3})
		}
		s.start()
		for i, w := range s.workers {
			w.runTodo()
			for _, fd := range []int32{-2, -3} {
				if w.sockets[fd].socket == nil {
					t.Errorf("worker %d of %d has no listener like %d", i, workers, fd)
				}
			}
		}
		s.close()
	}
}

// TestListenRetries makes the kernel refuse any one socket, and checks that the next attempt opens
// what is missing, on the same ports, also where a predecessor lacked a family.
func TestListenRetries(t *testing.T) {
	lab.Namespace(t)
	families := []proxy.Family{proxy.IPv4, proxy.IPv6}
	const all = 4 * 2 * 2 * 2 // kinds, families, protocols, workers
	for fails := range all {
		s, err := newServer(mode.DefaultRelay(), families, 2)
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		s.socket = func(domain, kind, protocol int) (int, error) {
			if made++; made == fails+1 {
				return -1, unix.EMFILE
			}
			return unix.Socket(domain, kind, protocol)
		}
		if s.families = families[:1]; fails >= all/2 {
			s.families = families
		}
		if err := s.listen(); !errors.Is(err, unix.EMFILE) {
			t.Fatalf("socket %d is refused: %v", fails, err)
		}
		s.families = families
		if err := s.listen(); err != nil {
			t.Fatal(err)
		}
		ports := map[listener]int{}
		for _, l := range s.listeners {
			ports[listener{Scope: l.Scope, Masquerade: l.Masquerade, Port: l.Port}]++
		}
		if len(s.listeners) != all || len(ports) != 4 {
			t.Errorf("socket %d was refused: %d listeners on ports %v", fails, len(s.listeners), ports)
		}
		s.close()
	}
}

// TestNoWakeUpIsLost passes functions to a worker while it takes those before: as long as it has
// one, it must not wait for events.
func TestNoWakeUpIsLost(t *testing.T) {
	w := loneWorker(t)
	const atOnce = 10
	rounds, called := 5_000, 0
	if testing.Short() {
		rounds = 500
	}
	for range rounds {
		var others sync.WaitGroup
		others.Go(func() {
			for range atOnce {
				w.do(func() { called++ })
			}
		})
		for called = 0; called < atOnce; w.runTodo() {
			w.mu.Lock()
			waiting := len(w.todo)
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.wake), Events: unix.POLLIN}}, 0)
			w.mu.Unlock()
			if waiting > 0 && n == 0 {
				t.Fatalf("%d functions wait until another is passed, error %v", waiting, err)
			}
		}
		others.Wait()
	}
}

// TestMetersAreRemoved checks that meters of very many removed endpoints do not accumulate if
// nobody reads them.
func TestMetersAreRemoved(t *testing.T) {
	s := oneWorker(t)
	for i := range 10 * minMeters {
		m := s.countConnection(proxy.PortKey{}, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80))
		m.open.Add(-1)
	}
	if n := len(s.meters.of); n > 2*minMeters {
		t.Errorf("%d meters are kept", n)
	}
}

// events is a socket that counts its events.
type events int

func (e *events) ready(*worker, int, uint32) { *e++ }

// TestDescriptorReuse closes a descriptor that another process still has, as a child does that has
// not executed its program yet, and checks that its events do not reach the next socket with the
// same number.
func TestDescriptorReuse(t *testing.T) {
	w, err := (&server{}).newWorker()
	if err != nil {
		t.Fatal(err)
	}
	pair := func() [2]int {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeAll(fds[:]) })
		return fds
	}
	first, next := pair(), pair()
	var before, after events
	fd, err := unix.Dup(first[0])
	if err != nil {
		t.Fatal(err)
	}
	turn := func() {
		list := make([]unix.EpollEvent, maxEvents)
		n, _ := unix.EpollWait(w.epoll, list, 0)
		w.dispatch(list[:max(n, 0)])
	}
	if err := w.watch(fd, &before, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(first[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if turn(); before != 1 {
		t.Fatalf("%d events, want 1", before)
	}
	w.close(fd)
	turn()
	if err := unix.Dup3(next[0], fd, unix.O_CLOEXEC); err != nil { // it has the number now
		t.Fatal(err)
	}
	if err := w.watch(fd, &after, unix.EPOLLIN|unix.EPOLLET); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(first[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if turn(); after != 0 {
		t.Errorf("the next socket with the same number received %d events of the former one", after)
	}
}

// TestTurnsAreShort checks that a connection with much to copy lets others have a turn soon.
func TestTurnsAreShort(t *testing.T) {
	w := loneWorker(t)
	c := &connection{meter: &meter{}, readable: [2]bool{client: true}}
	for i, name := range []string{"/dev/zero", "/dev/null"} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.fds[i] = int(f.Fd())
	}
	const limit = 1 << 20
	more, err := c.move(w, client)
	if copied := c.meter.bytes[proxy.In].Load(); !more || err != nil || copied == 0 || copied > limit {
		t.Errorf("%d bytes copied in one turn, more: %v, error %v; want %d at most", copied, more, err, limit)
	}
	c.release(w, client)
}

// TestNoDescriptorForEndpoint checks that a lack of descriptors is not blamed on endpoints: none is
// counted as unreachable, and session affinity keeps the client's.
func TestNoDescriptorForEndpoint(t *testing.T) {
	s := oneWorker(t)
	s.socket = func(int, int, int) (int, error) { return -1, unix.EMFILE }
	row := &proxy.ServicePort{Affinity: time.Hour, Frontends: []proxy.Frontend{{Addr: netip.MustParseAddrPort("172.30.0.1:53")}}}
	for _, a := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		row.Cluster = append(row.Cluster, proxy.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	row.Key.Protocol = proxy.UDP
	s.index.Update([]proxy.PortKey{row.Key}, map[proxy.PortKey]*proxy.ServicePort{row.Key: row})
	service, from := s.index.Get(row.Key), netip.MustParseAddrPort("10.0.0.9:40000")
	had, _ := service.Choose(from.Addr(), proxy.ScopeCluster, nil)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(fds[1:])
	w := s.workers[0]
	c := &connection{connectionState: connectionState{Client: from}, service: service, fds: [2]int{fds[0], -1}}
	c.watch(w, client)
	c.dial(w)
	(&listener{}).session(w, flow{from, row.Frontends[0].Addr})
	if n := s.refused[noDescriptor].Load(); n != 2 || c.fds[client] >= 0 {
		t.Errorf("%d clients are refused for lack of descriptors, want 2; the connection ended: %v", n, c.fds[client] < 0)
	}
	if n := s.failed[dialUnreachable].Load(); n > 0 {
		t.Errorf("%d endpoints count as unreachable", n)
	}
	if got := service.RememberedEndpoint(from.Addr(), proxy.ScopeCluster); got != had.Addr {
		t.Errorf("the client's endpoint was %v and is now %v", had.Addr, got)
	}
}

// TestSessionWithoutWatch checks that a session that cannot be watched leaves nothing behind.
func TestSessionWithoutWatch(t *testing.T) {
	lab.Require(t)
	s := oneWorker(t)
	w, at := s.workers[0], netip.MustParseAddrPort("127.0.0.1:5353")
	x := &session{sessionState: sessionState{flow: flow{Client: at, Dst: at}}, service: balance.NewService(proxy.PortKey{}), fd: -1}
	if x.begin(w) {
		t.Error("a session without a socket begins")
	}
	if len(w.replies)+len(w.sockets) != 1 { // one is the worker's own event descriptor
		t.Errorf("%d reply sockets and %d watched sockets are left", len(w.replies), len(w.sockets))
	}
}
