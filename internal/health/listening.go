package health

import (
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

const (
	// lastAnswers is how long requests under way have to end when their
	// listener is gone.
	lastAnswers = time.Second

	// headerTimeout and idleTimeout free what silent clients hold.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// listening is an HTTP server at one address.
type listening struct {
	listener net.Listener
	http     *http.Server
	ended    chan struct{} // closed when it serves no more
	err      error         // why, from then on
}

// listen binds one address. The error names it.
func listen(ctx context.Context, network string, a netip.AddrPort) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, network, a.String())
}

func boundTo(l net.Listener) netip.AddrPort {
	a := l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// newHTTPServer returns a server that holds nothing for clients that say
// nothing, and whose complaints reach our log.
func newHTTPServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          errorLog(ctx),
	}
}

func errorLog(ctx context.Context) *log.Logger {
	return slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo)
}

// serve answers what comes in until close.
func serve(l net.Listener, s *http.Server) *listening {
	n := &listening{listener: l, http: s, ended: make(chan struct{})}
	go func() {
		defer close(n.ended)
		n.err = s.Serve(l)
	}()
	return n
}

// close gives the address up at once, and lets requests under way end for a
// moment, while which gone waits.
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
