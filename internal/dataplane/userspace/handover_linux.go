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

// handoverAddr is where a daemon finds its predecessor.
var handoverAddr = &net.UnixAddr{Net: "unixpacket", Name: mode.RelaySocket}

// handoverTimeout bounds a handover.
const handoverTimeout = 30 * time.Second

// handoverMessage is one object that a successor receives, as JSON, with its descriptors. Exactly
// one field is set.
type handoverMessage struct {
	Listener   *listener        `json:",omitempty"`
	Connection *connectionState `json:",omitempty"`
	Session    *sessionState    `json:",omitempty"`
	Client     *affinityEntry   `json:",omitempty"`
}

// affinityEntry is the endpoint that session affinity remembers for a client.
type affinityEntry struct {
	Key      proxy.PortKey
	Client   netip.Addr
	Scope    proxy.Scope // the zero value from a version that does not distinguish lists
	Endpoint netip.AddrPort
	Idle     time.Duration // since the client connected last; a duration, because a time would be wrong after the clock is set
}

// checkPeer returns an error unless the peer is a process of our own user. It also sets the
// deadline of the handover.
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
		return fmt.Errorf("hand over by socket %s: the peer is process %d of another user, %d", handoverAddr.Name, cred.Pid, cred.Uid)
	}
	return c.SetDeadline(time.Now().Add(handoverTimeout))
}

// awaitSuccessor stops the server and hands everything to the first process of our user that
// connects. It reports false if none did before the listener was closed.
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

// handOver sends everything that is open, and closes our descriptors of it. What the successor does
// not receive is closed.
func (s *server) handOver(to *net.UnixConn) {
	send := func(h handoverMessage, fds ...int) {
		if b, err := json.Marshal(h); err == nil {
			_, _, _ = to.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
		}
		closeAll(fds)
	}
	for _, l := range s.listeners {
		send(handoverMessage{Listener: l}, l.fd)
	}
	s.listeners = nil
	for _, w := range s.workers {
		for fd, x := range w.sockets {
			switch x := x.socket.(type) {
			case *connection: // it is in the map twice
				if int(fd) == x.fds[client] {
					send(handoverMessage{Connection: &x.connectionState}, x.descriptors()...)
				}
			case *session:
				_ = connectUDP(x.fd, x.Endpoint) // the successor serves its flow
				send(handoverMessage{Session: &x.sessionState}, x.fd)
			}
		}
		for _, r := range w.replies {
			_ = unix.Close(r.fd)
		}
		clear(w.sockets)
	}
	// They come last because they may be so many that the successor does not wait for all.
	for x := range s.index.All {
		for client, r := range x.Clients {
			send(handoverMessage{Client: &affinityEntry{x.Key, client.Addr, client.Scope, r.Endpoint, time.Since(r.Used)}})
		}
	}
}

// descriptors returns the descriptors that are sent with a connection. While an endpoint is being
// dialed, only the client's: the successor dials anew.
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

// takeOver receives everything from the predecessor, if there is one.
func (s *server) takeOver() error {
	c, err := net.DialUnix(handoverAddr.Net, nil, handoverAddr)
	if err != nil {
		return nil
	}
	defer func() { _ = c.Close() }()
	if err := checkPeer(c); err != nil {
		return err
	}
	return s.receiveHandover(c)
}

// receiveHandover takes over everything that a predecessor sends, until it closes the connection. What
// was received before an error is served all the same.
func (s *server) receiveHandover(c *net.UnixConn) error {
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
		var h handoverMessage
		if err := errors.Join(failed, json.Unmarshal(b[:size], &h)); err != nil {
			closeAll(fds)
			return fmt.Errorf("take over from the former daemon: %w", err)
		}
		if flags&unix.MSG_CTRUNC != 0 { // The process has no descriptors left for some of them.
			closeAll(fds)
			fds = nil
		}
		s.adopt(&h, fds, s.workers[n%len(s.workers)])
	}
}

// adopt takes over one object of a predecessor.
func (s *server) adopt(h *handoverMessage, fds []int, w *worker) {
	service := func(key proxy.PortKey) *balance.Service {
		if x := s.index.Get(key); x != nil {
			return x
		}
		return balance.NewService(key) // its row is gone
	}
	switch {
	case h.Client != nil:
		service(h.Client.Key).Restore(balance.Client{Addr: h.Client.Client, Scope: h.Client.Scope},
			balance.Remembered{Endpoint: h.Client.Endpoint, Used: time.Now().Add(-h.Client.Idle)})
	case len(fds) == 0: // the process has no descriptors left for it
		s.refused[noDescriptor].Add(1)
	case h.Listener != nil:
		h.Listener.fd = fds[0]
		if domain, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_INET6 {
			h.Listener.family = proxy.IPv6
		}
		s.add(h.Listener)
	case h.Connection != nil:
		c := &connection{connectionState: *h.Connection, service: service(h.Connection.Key), fds: [2]int{fds[0], -1}}
		w.do(func() { c.resume(w, fds[1:]) })
	case h.Session != nil:
		x := &session{sessionState: *h.Session, service: service(h.Session.Key), fd: fds[0]}
		x.service.Acquire(x.Endpoint)
		if 0 < x.Listener && x.Listener <= len(s.listeners) {
			w = s.listeners[x.Listener-1].worker
		}
		w.do(func() { x.begin(w) })
	}
}

// resume continues a connection; fds are its descriptors besides the client's.
func (c *connection) resume(w *worker, fds []int) {
	w.open[proxy.TCP].Add(1)
	if c.watch(w, client); c.fds[client] < 0 {
		closeAll(fds)
		return
	}
	pipes := 0
	for _, n := range c.Held {
		if n != 0 {
			pipes++
		}
	}
	switch {
	case len(fds) == 0 && pipes == 0:
		c.dial(w)
		return
	case len(fds) < 1+2*pipes: // bytes are lost
		closeAll(fds)
		c.end(w, true)
		return
	}
	c.fds[endpoint], fds = fds[0], fds[1:]
	c.service.Acquire(c.Endpoint.Addr)
	c.meter = w.countConnection(c.Key, c.Endpoint.Addr)
	for i := range c.pipes {
		if c.Held[i] != 0 {
			c.pipes[i], fds = newPipe(fds[0], fds[1]), fds[2:]
		}
	}
	c.watch(w, endpoint)
	c.relay(w)
}
