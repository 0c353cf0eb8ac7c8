package userspace

import (
	"container/list"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// flow is what a session is found by.
type flow struct{ Client, Dst netip.AddrPort }

// session is a client's datagrams to a frontend, and the endpoint that they go to.
type session struct {
	flow
	service  *service
	endpoint netip.AddrPort
	version  uint64 // of the service, when the endpoint was last known to serve
	fd       int    // to the endpoint
	reply    *reply
	used     time.Time
	idle     *list.Element
}

// reply is a socket with the address of a frontend. It only sends: datagrams to
// the frontend come to the listener, since the socket is connected to nobody.
type reply struct {
	fd       int
	sessions int
}

// receive takes one datagram.
func (l *listener) receive(w *worker) error {
	var oob [64]byte
	n, on, _, from, err := unix.Recvmsg(l.fd, w.buffer, oob[:], 0)
	if err != nil {
		return err
	}
	f := flow{Client: addrPort(from)}
	messages, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(messages) == 0 {
		return nil
	}
	dst, err := unix.ParseOrigDstAddr(&messages[0])
	if err != nil {
		return nil
	}
	f.Dst = addrPort(dst)
	if s := l.session(w, f); s != nil {
		s.forward(w, w.buffer[:n])
	}
	return nil
}

// session returns the session of a flow, which may begin now; nil if there is none.
func (l *listener) session(w *worker, f flow) *session {
	s := w.sessions[f]
	if s != nil && s.alive(w) {
		return s
	}
	service := w.index.find(proxy.UDP, f.Dst)
	if why := w.refuses(service); why != "" {
		w.counts.refused(why)
		return nil
	}
	s = &session{flow: f, service: service, fd: -1}
	if !s.connect(w, l) {
		return nil
	}
	if !s.begin(w) {
		return nil
	}
	return s
}

// begin makes a session that has an endpoint found.
func (s *session) begin(w *worker) bool {
	if s.reply = w.replyFrom(s.Dst); s.reply == nil || w.watch(s.fd, s, unix.EPOLLIN) != nil {
		w.counts.refused(noDescriptor)
		s.service.release(s.endpoint)
		w.close(s.fd)
		return false
	}
	w.sessions[s.flow] = s
	s.used, s.idle = time.Now(), w.idle.PushBack(s)
	w.counts.open[proxy.UDP].Add(1)
	return true
}

// connect finds the session an endpoint.
func (s *session) connect(w *worker, l *listener) bool {
	var tried []netip.AddrPort
	for range 1 + w.Retries {
		e, ok := s.service.choose(s.Client.Addr(), l.Scope, tried)
		if !ok {
			break
		}
		var err error
		if s.fd, err = w.connect(proxy.UDP, s.Client, e, l.Masquerade); err == nil {
			s.endpoint = e.Addr
			return true
		}
		w.counts.failed(err)
		s.service.release(e.Addr)
		tried = append(tried, e.Addr)
	}
	w.counts.refused(noEndpoint)
	return false
}

// alive reports whether the session's endpoint may still be sent to, and ends
// the session if not.
func (s *session) alive(w *worker) bool {
	if v := s.service.version.Load(); v != s.version {
		if !s.service.serves(s.endpoint) {
			s.end(w)
			return false
		}
		s.version = v
	}
	s.used = time.Now()
	w.idle.MoveToBack(s.idle)
	return true
}

// forward sends a datagram to the endpoint.
func (s *session) forward(w *worker, b []byte) {
	if _, err := unix.Write(s.fd, b); err == unix.ECONNREFUSED {
		s.refused(w)
	}
}

// refused ends a session whose endpoint does not listen: the client's next
// datagram begins another one.
func (s *session) refused(w *worker) {
	w.counts.failed(unix.ECONNREFUSED)
	s.service.disown(s.Client.Addr())
	s.end(w)
}

// ready takes answers of the endpoint.
func (s *session) ready(w *worker, _ int, _ uint32) {
	for range roundsAtOnce {
		n, err := unix.Read(s.fd, w.buffer)
		switch {
		case err == unix.ECONNREFUSED:
			s.refused(w)
			return
		case err != nil || !s.alive(w):
			return
		}
		_ = unix.Sendto(s.reply.fd, w.buffer[:n], 0, sockaddr(s.Client)) // what cannot be sent is lost, as datagrams may be
	}
}

func (s *session) end(w *worker) {
	delete(w.sessions, s.flow)
	w.idle.Remove(s.idle)
	w.close(s.fd)
	s.service.release(s.endpoint)
	w.counts.open[proxy.UDP].Add(-1)
	if s.reply.sessions--; s.reply.sessions == 0 {
		delete(w.replies, s.Dst)
		_ = unix.Close(s.reply.fd)
	}
}

// nobody are addresses that no datagram comes from.
var nobody = [...]netip.AddrPort{
	proxy.IPv4: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 255, 255, 254}), 9),
	proxy.IPv6: netip.AddrPortFrom(netip.IPv6Loopback(), 9),
}

// replyFrom returns the socket that answers from a frontend, or nil.
func (w *worker) replyFrom(dst netip.AddrPort) *reply {
	if r := w.replies[dst]; r != nil {
		r.sessions++
		return r
	}
	f := proxy.FamilyOf(dst.Addr())
	fd, err := w.open(proxy.UDP, f)
	if err != nil {
		return nil
	}
	err = transparent.set(fd, f)
	if err == nil {
		err = switchOn(fd, unix.SO_REUSEADDR)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(dst))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(nobody[f]))
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil
	}
	r := &reply{fd, 1}
	w.replies[dst] = r
	return r
}
