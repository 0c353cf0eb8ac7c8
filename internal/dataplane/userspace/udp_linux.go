package userspace

import (
	"container/list"
	"math"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

// flow identifies a session.
type flow struct{ Client, Dst netip.AddrPort }

// sessionState is what a successor needs to know of a session. It is sent as JSON.
type sessionState struct {
	flow
	Key      proxy.PortKey
	Endpoint netip.AddrPort
	Listener int // the number of the listener that receives the client's datagrams; 0 from a version that does not send it
}

// session relays the datagrams of a client to a frontend, and the replies of the endpoint.
type session struct {
	sessionState
	service *balance.Service
	meter   *meter
	version uint64 // of the index, when the endpoint was last found to serve
	fd      int    // connected to the endpoint, unless disconnected
	reply   *reply
	used    time.Time
	idle    *list.Element

	disconnected bool // by the drain
}

// reply is a socket bound to the address of a frontend, from which replies are sent. It is
// connected to an unused address, so that datagrams to the frontend go to the listener instead.
type reply struct{ fd, sessions int }

// unusedAddrs are addresses that no datagram comes from, by family.
var unusedAddrs = [...]netip.AddrPort{
	proxy.IPv4: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 255, 255, 254}), 9),
	proxy.IPv6: netip.AddrPortFrom(netip.IPv6Loopback(), 9),
}

// receive receives one datagram and sends it to the endpoint of its session.
func (l *listener) receive(w *worker) error {
	var oob [64]byte
	n, on, _, from, err := syscall.Recvmsg(l.fd, w.buffer, oob[:], 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(messages) == 0 {
		return nil
	}
	if s := l.session(w, flow{addrPort(from), originalDestination(messages[0].Data)}); s != nil {
		switch err := s.send(w.buffer[:n]); err {
		case nil:
			s.meter.add(proxy.In, n, 1)
		case unix.ECONNREFUSED:
			s.refused(w)
		}
	}
	return nil
}

// session returns the session of a flow, which it creates if necessary; nil if the flow cannot be
// served.
func (l *listener) session(w *worker, f flow) *session {
	if s := w.sessions[f]; s != nil && s.alive(w) {
		return s
	}
	s := &session{service: w.index.Find(proxy.UDP, f.Dst)}
	if s.service == nil {
		w.refused[noService].Add(1)
		return nil
	}
	w.makeRoom()
	s.flow, s.Key, s.Listener = f, s.service.Key, l.number
	var tried []netip.AddrPort
	for range 1 + w.Retries {
		e, ok := s.service.Choose(f.Client.Addr(), l.Scope, tried)
		if !ok {
			break
		}
		s.Endpoint = e.Addr
		var err error
		if s.fd, err = w.connect(proxy.UDP, f.Client, e, l.Masquerade); err == nil {
			if s.begin(w) {
				return s
			}
			return nil
		}
		s.service.Release(e.Addr)
		if w.exhausted(err) { // no endpoint is to blame
			return nil
		}
		w.countFailedDial(err)
		tried = append(tried, e.Addr)
	}
	w.refused[noEndpoint].Add(1)
	return nil
}

// begin registers a session that has an endpoint. If that fails, it closes the session's socket and
// returns false.
func (s *session) begin(w *worker) bool {
	err := w.watch(s.fd, s, unix.EPOLLIN)
	if err == nil {
		s.reply, err = w.replyFrom(s.Dst)
	}
	if err != nil {
		if !w.exhausted(err) {
			w.refused[noReply].Add(1)
			w.logNoReply.Do(func() {
				w.log.Error(err, "Cannot send replies from the address of a UDP Service: a process of this node has its port, or the daemon lacks CAP_NET_BIND_SERVICE", "address", s.Dst)
			})
		}
		s.service.Release(s.Endpoint)
		w.close(s.fd)
		return false
	}
	if w.draining {
		s.disconnect()
	}
	w.sessions[s.flow], s.meter = s, w.countConnection(s.Key, s.Endpoint)
	s.used, s.idle = time.Now(), w.idle.PushBack(s)
	w.open[proxy.UDP].Add(1)
	return true
}

// alive reports whether the frontend is still that of the session's Service and the endpoint still
// serves, and ends the session if not.
func (s *session) alive(w *worker) bool {
	if v := w.index.Version.Load(); v != s.version {
		if w.index.Find(proxy.UDP, s.Dst) != s.service || !s.service.Serves(s.Endpoint) {
			s.end(w)
			return false
		}
		s.version = v
	}
	s.used = time.Now()
	w.idle.MoveToBack(s.idle)
	return true
}

// refused ends a session whose endpoint does not listen. The client's next datagram begins another
// one.
func (s *session) refused(w *worker) {
	w.countFailedDial(unix.ECONNREFUSED)
	s.service.Forget(s.Client.Addr(), s.Endpoint)
	s.end(w)
}

// drainSessions lets another mode serve new flows from the ports that sessions have chosen for their
// clients. The kernel delivers every datagram that fits a connected socket to it (early demux), even
// a reply that is to be translated and forwarded.
func (w *worker) drainSessions() {
	w.draining = true
	for _, s := range w.sessions {
		s.disconnect()
	}
}

// disconnect leaves the socket bound, so that it receives only what the rules of the mode send to it. A
// socket with an address and port of the node stays connected: no client sends from these.
func (s *session) disconnect() {
	o := transparent[proxy.FamilyOf(s.Endpoint.Addr())]
	if on, err := unix.GetsockoptInt(s.fd, o.level, o.name); err != nil || on == 0 {
		return
	}
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	s.disconnected = errno == 0
}

func (s *session) send(b []byte) error {
	if s.disconnected {
		return unix.Sendto(s.fd, b, 0, sockaddr(s.Endpoint))
	}
	_, err := unix.Write(s.fd, b)
	return err
}

// receive receives a datagram of the endpoint.
func (s *session) receive(b []byte) (n int, err error) {
	if !s.disconnected {
		return unix.Read(s.fd, b)
	}
	n, from, err := syscall.Recvfrom(s.fd, b, 0)
	if err == nil && addrPort(from) != s.Endpoint {
		return 0, unix.EAGAIN
	}
	return n, err
}

// ready sends replies of the endpoint to the client.
func (s *session) ready(w *worker, _ int, _ uint32) {
	for range maxRounds {
		n, err := s.receive(w.buffer)
		switch {
		case err == unix.ECONNREFUSED:
			s.refused(w)
			return
		case err != nil || !s.alive(w):
			return
		}
		if unix.Sendto(s.reply.fd, w.buffer[:n], 0, sockaddr(s.Client)) == nil { // A datagram that cannot be sent is lost.
			s.meter.add(proxy.Out, n, 1)
		}
	}
}

func (s *session) end(w *worker) {
	delete(w.sessions, s.flow)
	w.idle.Remove(s.idle)
	w.close(s.fd)
	s.service.Release(s.Endpoint)
	w.open[proxy.UDP].Add(-1)
	s.meter.open.Add(-1)
	if s.reply.sessions--; s.reply.sessions == 0 {
		delete(w.replies, s.Dst)
		_ = unix.Close(s.reply.fd)
	}
}

// replyFrom returns the socket that replies are sent from for a frontend. It cannot be opened while
// a process of the node has the port at the wildcard address, unless that process shares it too.
func (w *worker) replyFrom(dst netip.AddrPort) (*reply, error) {
	r := w.replies[dst]
	if r == nil {
		f := proxy.FamilyOf(dst.Addr())
		fd, err := w.openSocket(proxy.UDP, f, dst, transparent[f], shareAddr, sharePort)
		if err != nil {
			return nil, err
		}
		// The replies that the kernel keeps while it looks for one client's hardware address must not
		// use up the buffer of all. The kernel bounds them for each neighbour (unres_qlen_bytes), as
		// it does when it forwards. In a user namespace it does not allow this.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, math.MaxInt32)
		if err := connectUDP(fd, unusedAddrs[f]); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
		r = &reply{fd: fd}
		w.replies[dst] = r
	}
	r.sessions++
	return r, nil
}
