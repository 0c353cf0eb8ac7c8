package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

const (
	// socketRetry is the pause before the next attempt to listen.
	socketRetry = time.Second

	// shutdownTimeout bounds how long requests in progress may take after ctx ends.
	shutdownTimeout = time.Second

	// headerTimeout and idleTimeout bound how long silent clients hold a connection.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Socket serves a handler at a unix socket that only its owner may use.
type Socket struct {
	Path    string
	Handler http.Handler
}

// Run serves until ctx ends, and then returns nil. The daemon works without the
// socket, so Run logs an error once and retries, for example while another daemon
// has the socket.
func (s Socket) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	lastError := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			break
		}
		if text := err.Error(); text != lastError {
			lastError = text
			logger.Error(err, "The status API is not served at its socket, will retry; nothing else is affected", "retryIn", socketRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(socketRetry):
		}
	}
	return nil
}

// serve serves until ctx ends or the socket fails.
func (s Socket) serve(ctx context.Context) error {
	l, release, err := listenLocked(s.Path)
	if err != nil {
		return err
	}
	defer release()
	server := &http.Server{
		Handler: s.Handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	klog.FromContext(ctx).V(2).Info("Listening", "server", "status", "socket", s.Path)
	select {
	case err := <-ended:
		return fmt.Errorf("serve status at %s: %w", s.Path, err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(shutdown) != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve status at %s: %w", s.Path, err)
	}
	return nil
}

// errLocked is the error of lockFile if another process holds the lock.
var errLocked = errors.New("another daemon listens there")

// listenLocked listens on a unix socket. It holds a lock file beside the socket until
// release is called, so that it replaces the socket of a daemon that was killed, but
// not that of a running one.
func listenLocked(path string) (l *net.UnixListener, release func(), err error) {
	if err := makePrivateDir(filepath.Dir(path)); err != nil {
		return nil, nil, fmt.Errorf("create the directory of the status socket: %w", err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, nil, fmt.Errorf("lock status socket %s: %w", path, err)
	}
	if l, err = listenPrivate(path); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen on status socket %s: %w", path, err), lock.Close())
	}
	return l, func() {
		_ = os.Remove(path) // while the lock is held: afterwards it may be another daemon's
		_ = lock.Close()
	}, nil
}
