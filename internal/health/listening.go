package health

import (
	"context"
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

// listen binds one address. The error names it. The server holds nothing for
// clients that say nothing, and its complaints reach our log.
func listen(ctx context.Context, network string, a netip.AddrPort, h http.Handler) (*listening, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, network, a.String())
	if err != nil {
		return nil, err
	}
	return &listening{listener: l, ended: make(chan struct{}), http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo),
	}}, nil
}

// at returns the address that was bound.
func (l *listening) at() netip.AddrPort {
	a := l.listener.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// serve answers until close, or until the listener fails.
func (l *listening) serve() {
	go func() {
		defer close(l.ended)
		l.err = l.http.Serve(l.listener)
	}()
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
