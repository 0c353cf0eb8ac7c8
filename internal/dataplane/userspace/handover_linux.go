package userspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// meetingPoint is where a daemon finds its predecessor. It is of the network
// namespace, whatever the file systems of both.
var meetingPoint = &net.UnixAddr{Net: "unixpacket", Name: "@sluice-userspace"}

// handoverTime is how long a successor may take.
const handoverTime = 30 * time.Second

// handed is something open that a successor gets, with its descriptors.
type handed struct {
	Listener   *listener        `json:",omitempty"`
	Connection *savedConnection `json:",omitempty"`
	Session    *savedSession    `json:",omitempty"`
	Client     *savedClient     `json:",omitempty"`
}

type savedConnection struct {
	Key        proxy.PortKey
	Client     netip.AddrPort
	Endpoint   proxy.Endpoint
	Scope      proxy.Scope
	Masquerade bool
	Held       [2]int
	Ended      [2]bool
	Shut       [2]bool
}

type savedSession struct {
	flow
	Key      proxy.PortKey
	Endpoint netip.AddrPort
}

// savedClient is what session affinity knows of a client.
type savedClient struct {
	Key    proxy.PortKey
	Client netip.Addr
	remembered
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

func listenForSuccessor() (net.Listener, error) {
	return net.ListenUnix(meetingPoint.Net, meetingPoint)
}

// predecessorRuns reports whether a daemon waits for a successor, without being
// one. The list is that of the calling thread's network namespace.
func predecessorRuns() (bool, error) {
	all, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false, fmt.Errorf("look for a former daemon: %w", err)
	}
	for line := range strings.Lines(string(all)) {
		if fields := strings.Fields(line); fields[len(fields)-1] == meetingPoint.Name {
			return true, nil
		}
	}
	return false, nil
}

// awaitSuccessor hands everything to the first process that asks and may. It
// reports false if none did before the listener was closed.
func (s *server) awaitSuccessor(l net.Listener, stop func()) bool {
	for {
		c, err := l.Accept()
		if err != nil {
			return false
		}
		successor := c.(*net.UnixConn)
		if checkPeer(successor) == nil {
			_ = l.Close() // the successor listens there next
			stop()
			s.handOver(successor)
			_ = c.Close()
			return true
		}
		_ = c.Close()
	}
}

// handOver sends all that is open, and closes our part of it.
func (s *server) handOver(to *net.UnixConn) {
	give := func(h handed, fds ...int) {
		if b, err := json.Marshal(h); err == nil {
			_, _, _ = to.WriteMsgUnix(b, unix.UnixRights(fds...), nil) // a successor that does not read ends what it does not get
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	for _, l := range s.listeners {
		give(handed{Listener: l}, l.fd)
	}
	s.listeners = nil
	for key, x := range s.index.services {
		for client, r := range x.clients {
			give(handed{Client: &savedClient{key, client, r}})
		}
	}
	for _, w := range s.workers {
		given := map[socket]bool{}
		for _, x := range w.sockets {
			switch x := x.(type) {
			case *connection:
				if !given[x] {
					saved, fds := x.save()
					give(handed{Connection: saved}, fds...)
				}
				given[x] = true
			case *session:
				give(handed{Session: &savedSession{x.flow, x.service.key, x.endpoint}}, x.fd)
			}
		}
		clear(w.sockets)
	}
}

// save returns what a successor must know. It begins anew to connect to an
// endpoint that was not yet reached.
func (c *connection) save() (*savedConnection, []int) {
	saved := &savedConnection{Key: c.service.key, Client: c.client, Scope: c.scope, Masquerade: c.masquerade}
	fds := []int{c.fds[toClient]}
	if c.dialing != nil {
		_ = unix.Close(c.fds[toEndpoint])
		return saved, fds
	}
	saved.Endpoint = c.endpoint
	fds = append(fds, c.fds[toEndpoint])
	for i, f := range c.from {
		saved.Held[i], saved.Ended[i], saved.Shut[i] = f.held, f.ended, f.shut
		if f.held > 0 {
			fds = append(fds, f.pipe.r, f.pipe.w)
		}
	}
	return saved, fds
}

// takeOver gets everything from a predecessor, and reports whether there is one.
// The workers may not run yet.
func (s *server) takeOver() (bool, error) {
	c, err := net.DialUnix(meetingPoint.Net, nil, meetingPoint)
	if err != nil {
		return false, nil
	}
	defer func() { _ = c.Close() }()
	if err := checkPeer(c); err != nil {
		return false, err
	}
	b, oob := make([]byte, 64<<10), make([]byte, 1<<10)
	for n := 0; ; n++ {
		size, on, _, _, err := c.ReadMsgUnix(b, oob)
		if size == 0 || errors.Is(err, io.EOF) {
			return len(s.listeners) > 0, nil
		} else if err != nil {
			return len(s.listeners) > 0, fmt.Errorf("take over from the former daemon: %w", err)
		}
		var h handed
		var fds []int
		messages, err := unix.ParseSocketControlMessage(oob[:on])
		if err == nil && len(messages) > 0 {
			fds, err = unix.ParseUnixRights(&messages[0])
		}
		if err = errors.Join(err, json.Unmarshal(b[:size], &h)); err != nil || len(fds) == 0 && h.Client == nil {
			return len(s.listeners) > 0, fmt.Errorf("take over from the former daemon: %w", err)
		}
		s.adopt(&h, fds, s.workers[n%len(s.workers)])
	}
}

// adopt makes what a predecessor had the server's own.
func (s *server) adopt(h *handed, fds []int, w *worker) {
	switch {
	case h.Listener != nil:
		h.Listener.fd = fds[0]
		s.listeners = append(s.listeners, h.Listener)
	case h.Connection != nil:
		w.do(func() { w.restore(h.Connection, fds) })
	case h.Client != nil:
		if x := s.index.of(h.Client.Key); x != nil && x.row.Affinity > 0 {
			x.remember(h.Client.Client, h.Client.remembered)
		}
	case h.Session != nil:
		w.do(func() { w.restoreSession(h.Session, fds[0]) })
	}
}

// serviceOf returns the service of a row, or of one that is gone.
func (s *server) serviceOf(key proxy.PortKey) *service {
	if x := s.index.of(key); x != nil {
		return x
	}
	return newService(key)
}

// restore goes on with a connection.
func (w *worker) restore(saved *savedConnection, fds []int) {
	c := &connection{
		service: w.serviceOf(saved.Key), client: saved.Client, endpoint: saved.Endpoint,
		scope: saved.Scope, masquerade: saved.Masquerade, fds: [2]int{fds[0], -1},
	}
	w.counts.open[proxy.TCP].Add(1)
	c.watch(w, toClient)
	if len(fds) == 1 {
		c.dial(w)
		return
	}
	c.fds[toEndpoint] = fds[1]
	c.service.adopt(c.endpoint.Addr)
	pipes := fds[2:]
	for i := range c.from {
		c.from[i] = stream{held: saved.Held[i], ended: saved.Ended[i], shut: saved.Shut[i]}
		if saved.Held[i] > 0 && len(pipes) >= 2 {
			c.from[i].pipe = &pipe{pipes[0], pipes[1]}
			pipes = pipes[2:]
		}
	}
	c.watch(w, toEndpoint)
	c.relay(w)
}

// restoreSession goes on with a session.
func (w *worker) restoreSession(saved *savedSession, fd int) {
	s := &session{flow: saved.flow, service: w.serviceOf(saved.Key), endpoint: saved.Endpoint, fd: fd}
	s.service.adopt(s.endpoint)
	s.begin(w)
}
