package userspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// meetingPoint is where a daemon finds its predecessor.
var meetingPoint = &net.UnixAddr{Net: "unixpacket", Name: mode.RelaySocket}

// handoverTime is how long a handover may take.
const handoverTime = 30 * time.Second

// handed is something that a successor gets, with its descriptors.
type handed struct {
	Listener   *listener    `json:",omitempty"`
	Connection *relayed     `json:",omitempty"`
	Session    *relayedFlow `json:",omitempty"`
	Client     *known       `json:",omitempty"`
}

// known is what session affinity knows of a client.
type known struct {
	Key      proxy.PortKey
	Client   netip.Addr
	Scope    proxy.Scope // the zero value from a daemon of a version that remembers no lists
	Endpoint netip.AddrPort
	Idle     time.Duration // since the client came last: a time would not outlast a clock that is set
}

// checkPeer allows only processes of our own user.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d of user %d has the socket %s", cred.Pid, cred.Uid, meetingPoint.Name)
	}
	return c.SetDeadline(time.Now().Add(handoverTime))
}

// awaitSuccessor hands everything to the first process that asks and may. It
// reports false if none did before the listener was closed.
func (s *server) awaitSuccessor(l net.Listener, stop func()) bool {
	for {
		c, err := l.Accept()
		if err != nil {
			return false
		}
		if checkPeer(c.(*net.UnixConn)) != nil {
			_ = c.Close()
			continue
		}
		_ = l.Close() // the successor listens there next
		stop()
		s.handOver(c.(*net.UnixConn))
		_ = c.Close()
		return true
	}
}

// handOver sends all that is open, and closes our part of it. What a successor
// does not take ends.
func (s *server) handOver(to *net.UnixConn) {
	give := func(h handed, fds ...int) {
		if b, err := json.Marshal(h); err == nil {
			_, _, _ = to.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
		}
		closeAll(fds)
	}
	for _, l := range s.listeners {
		give(handed{Listener: l}, l.fd)
	}
	s.listeners = nil
	for x := range s.index.All {
		for client, r := range x.Clients {
			give(handed{Client: &known{x.Key, client.Addr, client.Scope, r.Endpoint, time.Since(r.Used)}})
		}
	}
	for _, w := range s.workers {
		for fd, x := range w.sockets {
			switch x := x.socket.(type) {
			case *connection: // it is there twice
				if int(fd) == x.fds[client] {
					give(handed{Connection: &x.relayed}, x.descriptors()...)
				}
			case *session:
				give(handed{Session: &x.relayedFlow}, x.fd)
			}
		}
		for _, r := range w.replies {
			_ = unix.Close(r.fd)
		}
		clear(w.sockets)
	}
}

// descriptors returns those that go with a connection. A successor begins anew
// to connect to an endpoint that was not yet reached.
func (c *connection) descriptors() []int {
	if c.dialing != nil {
		_ = unix.Close(c.fds[endpoint])
		return c.fds[:1]
	}
	fds := c.fds[:]
	for i, p := range c.pipes {
		if c.Held[i] > 0 {
			fds = append(fds, p.r, p.w)
		}
	}
	return fds
}

// takeOver gets everything from a predecessor, if there is one.
func (s *server) takeOver() error {
	c, err := net.DialUnix(meetingPoint.Net, nil, meetingPoint)
	if err != nil {
		return nil
	}
	defer func() { _ = c.Close() }()
	if err := checkPeer(c); err != nil {
		return err
	}
	return s.receiveAll(c)
}

// receiveAll takes over everything that a predecessor sends, until it closes the connection. What
// was received before an error is served all the same.
func (s *server) receiveAll(c *net.UnixConn) error {
	b, oob := make([]byte, 64<<10), make([]byte, 1<<10)
	for n := 0; ; n++ {
		size, on, flags, _, err := c.ReadMsgUnix(b, oob)
		switch {
		case errors.Is(err, io.EOF): // Either that was all, or the predecessor ended early.
			return nil
		case err != nil: // size may be negative
			return fmt.Errorf("take over from the former daemon: %w", err)
		}
		var fds []int
		messages, failed := unix.ParseSocketControlMessage(oob[:on])
		if failed == nil && len(messages) > 0 {
			fds, failed = unix.ParseUnixRights(&messages[0])
		}
		var h handed
		if err := errors.Join(failed, json.Unmarshal(b[:size], &h)); err != nil {
			closeAll(fds)
			return fmt.Errorf("take over from the former daemon: %w", err)
		}
		if flags&unix.MSG_CTRUNC != 0 { // The kernel had no descriptor for some of it.
			closeAll(fds)
			fds = nil
		}
		s.adopt(&h, fds, s.workers[n%len(s.workers)])
	}
}

// adopt makes what a predecessor had the server's own.
func (s *server) adopt(h *handed, fds []int, w *worker) {
	service := func(key proxy.PortKey) *balance.Service {
		if x := s.index.Of(key); x != nil {
			return x
		}
		return balance.NewService(key) // its row has gone
	}
	switch {
	case h.Client != nil:
		service(h.Client.Key).Recall(balance.Client{Addr: h.Client.Client, Scope: h.Client.Scope},
			balance.Remembered{Endpoint: h.Client.Endpoint, Used: time.Now().Add(-h.Client.Idle)})
	case len(fds) == 0: // the kernel had no descriptor for it
		s.refused[noDescriptor].Add(1)
	case h.Listener != nil:
		h.Listener.fd = fds[0]
		if domain, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_INET6 {
			h.Listener.family = proxy.IPv6
		}
		s.add(h.Listener)
	case h.Connection != nil:
		c := &connection{relayed: *h.Connection, service: service(h.Connection.Key), fds: [2]int{fds[0], -1}}
		w.do(func() { c.resume(w, fds[1:]) })
	case h.Session != nil:
		x := &session{relayedFlow: *h.Session, service: service(h.Session.Key), fd: fds[0]}
		x.service.Adopt(x.Endpoint)
		if 0 < x.Listener && x.Listener <= len(s.listeners) {
			w = s.listeners[x.Listener-1].worker
		}
		w.do(func() { x.begin(w) })
	}
}

// resume goes on with a connection that has descriptors besides the client's.
func (c *connection) resume(w *worker, fds []int) {
	w.open[proxy.TCP].Add(1)
	if c.watch(w, client); c.fds[client] < 0 {
		closeAll(fds)
		return
	}
	if len(fds) == 0 {
		c.dial(w)
		return
	}
	c.fds[endpoint], fds = fds[0], fds[1:]
	c.service.Adopt(c.Endpoint.Addr)
	c.meter = w.metered(c.Key, c.Endpoint.Addr)
	for i := range c.pipes {
		if c.Held[i] > 0 && len(fds) >= 2 {
			c.pipes[i], fds = newPipe(fds[0], fds[1]), fds[2:]
		}
	}
	c.watch(w, endpoint)
	c.relay(w)
}
