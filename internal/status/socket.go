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
	// socketRetry is how long to wait for a socket that another daemon has, or
	// that cannot be made.
	socketRetry = time.Second

	// lastAnswers is how long requests under way have to end at the end.
	lastAnswers = time.Second

	// headerTimeout and idleTimeout free what silent clients hold.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Socket answers at a unix socket that only its owner may use.
type Socket struct {
	Path    string
	Handler http.Handler
}

// Run answers until ctx ends, and then returns nil. Without a socket the daemon
// goes on, so what is in the way is logged once and tried again.
func (s Socket) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	complaint := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			break
		}
		if text := err.Error(); text != complaint {
			complaint = text
			logger.Error(err, "Status cannot be asked for, will try again; everything else goes on", "retryIn", socketRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(socketRetry):
		}
	}
	return nil
}

// serve answers until ctx ends or the socket fails.
func (s Socket) serve(ctx context.Context) error {
	l, release, err := listenAlone(s.Path)
	if err != nil {
		return err
	}
	defer release()
	server := &http.Server{
		Handler: s.Handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(klog.FromContext(ctx).V(2)), slog.LevelInfo),
	}
	ended := make(chan struct{})
	var failed error // from then on
	go func() {
		defer close(ended)
		failed = server.Serve(l)
	}()
	klog.FromContext(ctx).V(2).Info("Listening", "server", "status", "socket", s.Path)
	select {
	case <-ended:
		return fmt.Errorf("serve status at %s: %w", s.Path, failed)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	<-ended
	return nil
}

// errLocked says that another process has a lock.
var errLocked = errors.New("another daemon answers there")

// listenAlone makes a socket. A lock beside it says whose the path is: what a
// daemon left that was killed is replaced, what a living one has is not.
func listenAlone(path string) (l *net.UnixListener, release func(), err error) {
	if err := makePrivate(filepath.Dir(path)); err != nil {
		return nil, nil, fmt.Errorf("make the folder of the status socket: %w", err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, nil, fmt.Errorf("status socket %s: %w", path, err)
	}
	if l, err = listenPrivate(path); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("status socket %s: %w", path, err), lock.Close())
	}
	return l, func() {
		_ = os.Remove(path) // before another may lock it
		_ = lock.Close()
	}, nil
}
