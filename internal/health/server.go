package health

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

const (
	// bindRetry is the time between attempts to bind an address.
	bindRetry = 5 * time.Second

	// shutdownTimeout is how long requests in progress may take after their listener
	// was closed.
	shutdownTimeout = time.Second

	// headerTimeout and idleTimeout close the connections of silent clients.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute

	// maxHeader bounds the header of a request, in bytes.
	maxHeader = 32 << 10
)

type ServerSettings struct {
	Name     string // for logs and errors
	Handler  http.Handler
	Address  netip.AddrPort // the invalid address means not to listen
	TLS      *tls.Config    // nil means plain HTTP
	HardFail bool           // Run fails if the first address cannot be bound
}

// Server is an HTTP server with one address, which may change while it runs.
type Server struct {
	settings ServerSettings
	changed  chan struct{}
	want     atomic.Value // netip.AddrPort

	// Only the goroutine of Run changes these.
	cur     atomic.Pointer[httpListener] // nil if the server does not listen
	closing sync.WaitGroup               // closed listeners with requests in progress
}

// NewServer returns a server that does not listen before Run.
func NewServer(s ServerSettings) *Server {
	server := &Server{settings: s, changed: make(chan struct{}, 1)}
	server.want.Store(s.Address)
	return server
}

// SetAddress makes the server listen at another address, or with the invalid address
// not at all.
func (s *Server) SetAddress(a netip.AddrPort) {
	s.want.Store(a)
	notify(s.changed)
}

// Available returns an error if Run would fail because the address cannot be bound now.
func (s *Server) Available(ctx context.Context) error {
	want := s.want.Load().(netip.AddrPort)
	if !s.settings.HardFail || !want.IsValid() {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", want.String())
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.settings.Name, err)
	}
	return l.Close()
}

// Run serves until ctx ends, and then returns nil. It retries until it can bind the
// address. With HardFail it returns an error instead, but only before it has served: a
// wrong new address must not end a process that works.
func (s *Server) Run(ctx context.Context) error {
	defer s.closing.Wait()
	defer s.stopListening()
	logged, served := "", false
	for ctx.Err() == nil {
		var retry <-chan time.Time
		switch err := s.ensureListening(ctx); {
		case err == nil:
			logged, served = "", true
		case ctx.Err() != nil:
			return nil
		case s.settings.HardFail && !served:
			return err
		default:
			retry = time.After(bindRetry)
			if text := err.Error(); text != logged {
				logged = text
				klog.FromContext(ctx).Error(err, "Server does not listen, retrying", "server", s.settings.Name, "retryIn", bindRetry)
			}
		}
		var ended chan struct{}
		if cur := s.cur.Load(); cur != nil {
			ended = cur.ended
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-retry:
		case <-ended:
		}
	}
	return nil
}

// ensureListening makes the server listen at the wanted address. If the listener has
// failed, it returns the error, and the next call listens again.
func (s *Server) ensureListening(ctx context.Context) error {
	want := s.want.Load().(netip.AddrPort)
	if cur := s.cur.Load(); cur != nil && cur.address == want {
		select {
		case <-cur.ended:
			s.stopListening()
			return fmt.Errorf("serve %s at %v: %w", s.settings.Name, want, cur.err)
		default:
			return nil
		}
	}
	s.stopListening() // The old address may conflict with the new one.
	if !want.IsValid() {
		return nil
	}
	next, err := listen(ctx, "tcp", want, &http.Server{Handler: s.settings.Handler, TLSConfig: s.settings.TLS.Clone()})
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.settings.Name, err)
	}
	s.cur.Store(next)
	klog.FromContext(ctx).V(2).Info("Listening", "server", s.settings.Name, "address", next.listener.Addr())
	return nil
}

func (s *Server) stopListening() {
	if cur := s.cur.Swap(nil); cur != nil {
		cur.close(&s.closing)
	}
}

// httpListener is an HTTP server at one address.
type httpListener struct {
	address  netip.AddrPort // as requested; its port may be 0
	listener net.Listener
	http     *http.Server
	ended    chan struct{} // closed when it does not serve any more
	err      error         // why; valid once ended is closed
}

// listen binds one address and serves there until close, or until the listener fails.
// The server's errors are logged at verbosity 2.
func listen(ctx context.Context, network string, a netip.AddrPort, server *http.Server) (*httpListener, error) {
	bound, err := new(net.ListenConfig).Listen(ctx, network, a.String())
	if err != nil {
		return nil, err
	}
	listener := &boundedListener{Listener: bound}
	server.ReadHeaderTimeout, server.IdleTimeout, server.MaxHeaderBytes = headerTimeout, idleTimeout, maxHeader
	server.ErrorLog = slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo)
	l := &httpListener{address: a, listener: listener, http: server, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		if server.TLSConfig != nil {
			l.err = server.ServeTLS(listener, "", "")
			return
		}
		l.err = server.Serve(listener)
	}()
	return l, nil
}

// close frees the address before it returns. Requests in progress may end in the
// background.
func (l *httpListener) close(closing *sync.WaitGroup) {
	_ = l.listener.Close()
	closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if l.http.Shutdown(ctx) != nil {
			_ = l.http.Close()
		}
		<-l.ended
	})
}

// notify sends to a channel with a buffer of one, unless it is full.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// maxConnections bounds the connections of a listener. Each needs memory, and this
// process is one of the last that the kernel kills when memory runs out.
const maxConnections = 256

// boundedListener closes its oldest connection when there are too many, so that clients
// which hold connections cannot keep out others.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open list.List // of *boundedConn, the oldest first
}

func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, of: l}
	l.mu.Lock()
	c.at = l.open.PushBack(c)
	oldest, open := l.open.Front().Value.(*boundedConn), l.open.Len()
	l.mu.Unlock()
	if open > maxConnections {
		_ = oldest.Close()
	}
	return c, nil
}

type boundedConn struct {
	net.Conn
	of *boundedListener
	at *list.Element
}

// Close closes the connection; it may be called again.
func (c *boundedConn) Close() error {
	c.of.mu.Lock()
	c.of.open.Remove(c.at) // It does nothing the second time.
	c.of.mu.Unlock()
	return c.Conn.Close()
}
