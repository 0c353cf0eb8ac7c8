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
	// bindRetry is how long to wait for an address that could not be had.
	bindRetry = 5 * time.Second

	// lastAnswers is how long requests under way have to end when their
	// listener is gone.
	lastAnswers = time.Second

	// headerTimeout and idleTimeout free what silent clients hold.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute

	// maxHeader is how much a client may send before it is answered, in bytes.
	maxHeader = 32 << 10
)

type ServerSettings struct {
	Name     string // in logs and errors
	Handler  http.Handler
	Address  netip.AddrPort // the invalid one: do not listen
	TLS      *tls.Config    // nil: plain HTTP
	HardFail bool           // an address that cannot be had ends Run
}

// Server answers requests at one address, which may change while it runs.
type Server struct {
	settings ServerSettings
	changed  chan struct{}
	want     atomic.Value // netip.AddrPort

	// These are changed by the goroutine of Run alone.
	cur  atomic.Pointer[listening] // nil: it does not listen
	gone sync.WaitGroup            // listeners that were left, until their last answers
}

// NewServer returns a server that does nothing before Run.
func NewServer(s ServerSettings) *Server {
	server := &Server{settings: s, changed: make(chan struct{}, 1)}
	server.want.Store(s.Address)
	return server
}

// SetAddress moves the server. With the invalid address it ceases to listen.
func (s *Server) SetAddress(a netip.AddrPort) {
	s.want.Store(a)
	notify(s.changed)
}

// Available returns an error if the server must have its address and cannot.
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

// Run serves until ctx ends, and then returns nil. An address that cannot be had
// is tried again until it can, or ends Run if that is how the server was made and it has
// not served yet: a new address that is wrong is no reason to end what works.
func (s *Server) Run(ctx context.Context) error {
	defer s.gone.Wait()
	defer s.leave()
	complaint, served := "", false
	for ctx.Err() == nil {
		var retry <-chan time.Time
		switch err := s.settle(ctx); {
		case err == nil:
			complaint, served = "", true
		case ctx.Err() != nil:
			return nil
		case s.settings.HardFail && !served:
			return err
		default:
			retry = time.After(bindRetry)
			if text := err.Error(); text != complaint {
				complaint = text
				klog.FromContext(ctx).Error(err, "Will try again until it works", "server", s.settings.Name, "retryIn", bindRetry)
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

// settle makes the server listen where it should. If it has ceased to listen,
// it says why, and listens again the next time.
func (s *Server) settle(ctx context.Context) error {
	want := s.want.Load().(netip.AddrPort)
	if cur := s.cur.Load(); cur != nil && cur.asked == want {
		select {
		case <-cur.ended:
			s.leave()
			return fmt.Errorf("serve %s at %v: %w", s.settings.Name, want, cur.err)
		default:
			return nil
		}
	}
	s.leave() // before it listens anew: it may be in its own way
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

func (s *Server) leave() {
	if cur := s.cur.Swap(nil); cur != nil {
		cur.close(&s.gone)
	}
}

// listening is an HTTP server at one address.
type listening struct {
	asked    netip.AddrPort // where it was told to listen
	listener net.Listener
	http     *http.Server
	ended    chan struct{} // closed when it serves no more
	err      error         // why, from then on
}

// listen binds one address, which an error names, and answers there until close,
// or until the listener fails. The server's complaints reach our log.
func listen(ctx context.Context, network string, a netip.AddrPort, server *http.Server) (*listening, error) {
	bound, err := new(net.ListenConfig).Listen(ctx, network, a.String())
	if err != nil {
		return nil, err
	}
	listener := &boundedListener{Listener: bound}
	server.ReadHeaderTimeout, server.IdleTimeout, server.MaxHeaderBytes = headerTimeout, idleTimeout, maxHeader
	server.ErrorLog = slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo)
	l := &listening{asked: a, listener: listener, http: server, ended: make(chan struct{})}
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

// close frees the address at once. Requests under way may end, in the background.
func (l *listening) close(gone *sync.WaitGroup) {
	_ = l.listener.Close()
	gone.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if l.http.Shutdown(ctx) != nil {
			_ = l.http.Close()
		}
		<-l.ended
	})
}

// notify leaves a token for whoever waits, unless there is one.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// maxConnections is how many clients a listener holds. Each costs memory, which is
// the last that the kernel takes from this process when there is none left.
const maxConnections = 256

// boundedListener closes the connection that it has had for the longest when there
// would be too many: who holds connections cannot keep out who asks and goes.
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
	oldest, held := l.open.Front().Value.(*boundedConn), l.open.Len()
	l.mu.Unlock()
	if held > maxConnections {
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
	c.of.open.Remove(c.at) // nothing, if it is not there any more
	c.of.mu.Unlock()
	return c.Conn.Close()
}
