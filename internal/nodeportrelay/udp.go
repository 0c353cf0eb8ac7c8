package nodeportrelay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

const (
	// sessionTimeout ends a session without datagrams. The kernel forgets a UDP flow
	// after that time, too.
	sessionTimeout = 2 * time.Minute

	maxDatagram = 65535
)

// session is the datagrams of a client and its endpoint.
type session struct {
	conn     net.Conn
	target   *target
	endpoint netip.AddrPort
	used     atomic.Int64 // when a datagram of the client came last, in nanoseconds of Unix time
}

// sessions are those of a port, by client.
type sessions struct {
	mu  sync.Mutex
	all map[netip.AddrPort]*session
}

// receive relays the datagrams of a port until its socket is closed.
func (r *Relay) receive(ctx context.Context, l *listener, socket *net.UDPConn) {
	open := &sessions{all: map[netip.AddrPort]*session{}}
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			open.end()
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier reply
		}
		s := open.of(client)
		if t := l.target.Load(); s == nil || !t.Serves(s.endpoint) {
			if s = r.begin(ctx, t, open, socket, client); s == nil {
				continue
			}
		}
		s.used.Store(time.Now().UnixNano())
		_, _ = s.conn.Write(buffer[:n]) // If the endpoint refuses it, reply ends the session.
	}
}

// begin returns a new session, or nil if there is no endpoint or there are too many flows.
func (r *Relay) begin(ctx context.Context, t *target, open *sessions, socket *net.UDPConn, client netip.AddrPort) *session {
	select {
	case r.flows <- struct{}{}:
	default:
		return nil
	}
	conn, endpoint, hangUp, err := r.dial(ctx, "udp6", t)
	if err != nil {
		<-r.flows
		klog.FromContext(ctx).V(4).Info("No endpoint of a NodePort at [::1] for a datagram", "servicePort", t.Key, "err", err)
		return nil
	}
	s := &session{conn: conn, target: t, endpoint: endpoint}
	s.used.Store(time.Now().UnixNano())
	open.add(client, s)
	r.running.Go(func() {
		defer func() { <-r.flows }()
		defer hangUp()
		defer open.remove(client, s)
		s.reply(socket, client)
	})
	return s
}

// reply passes the endpoint's datagrams to the client until the session ends.
func (s *session) reply(socket *net.UDPConn, client netip.AddrPort) {
	buffer := make([]byte, maxDatagram)
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(sessionTimeout))
		n, err := s.conn.Read(buffer)
		switch {
		case err == nil:
			_, _ = socket.WriteToUDPAddrPort(buffer[:n], client)
		case !errors.Is(err, os.ErrDeadlineExceeded), time.Since(time.Unix(0, s.used.Load())) >= sessionTimeout:
			return
		}
	}
}

func (a *sessions) of(client netip.AddrPort) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[client]
}

// add records a client's session, which replaces and ends an earlier one.
func (a *sessions) add(client netip.AddrPort, s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if earlier := a.all[client]; earlier != nil {
		_ = earlier.conn.Close()
	}
	a.all[client] = s
}

// remove forgets a session unless another has replaced it.
func (a *sessions) remove(client netip.AddrPort, s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[client] == s {
		delete(a.all, client)
	}
}

// end ends all sessions.
func (a *sessions) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.all {
		_ = s.conn.Close()
	}
}
