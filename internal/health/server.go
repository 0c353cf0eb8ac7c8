package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// bindRetry is how long to wait for an address that could not be had.
const bindRetry = 5 * time.Second

// ServerSettings are what a Server is made of.
type ServerSettings struct {
	Name     string // in logs and errors
	Handler  http.Handler
	Address  netip.AddrPort // the invalid one: do not listen
	HardFail bool           // an address that cannot be had ends Run
}

// Server answers requests at one address, which may change while it runs.
type Server struct {
	settings ServerSettings
	changed  chan struct{}

	mu    sync.Mutex
	want  netip.AddrPort
	bound netip.AddrPort
}

// NewServer returns a server that does nothing before Run.
func NewServer(s ServerSettings) *Server {
	return &Server{settings: s, want: s.Address, changed: make(chan struct{}, 1)}
}

// SetAddress moves the server. The invalid address silences it.
func (s *Server) SetAddress(a netip.AddrPort) {
	s.mu.Lock()
	s.want = a
	s.mu.Unlock()
	notify(s.changed)
}

// Bound returns where the server listens now; the invalid address if it does not.
func (s *Server) Bound() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound
}

func (s *Server) wanted() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

func (s *Server) setBound(a netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = a
}

// Available returns an error if the server must have its address and cannot
// have it now.
func (s *Server) Available(ctx context.Context) error {
	want := s.wanted()
	if !s.settings.HardFail || !want.IsValid() {
		return nil
	}
	l, err := listen(ctx, "tcp", want)
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.settings.Name, err)
	}
	return l.Close()
}

// Run listens until ctx ends and then returns nil. An address that cannot be
// had is tried again and again, or with HardFail is an error.
func (s *Server) Run(ctx context.Context) error {
	l := life{Server: s}
	defer l.gone.Wait()
	defer l.leave()
	complaint := ""
	for ctx.Err() == nil {
		err := l.settle(ctx)
		if err == nil {
			complaint = ""
			err = l.rest(ctx, nil)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if s.settings.HardFail {
			return err
		}
		if text := err.Error(); text != complaint {
			complaint = text
			klog.FromContext(ctx).Error(err, "Will try again until it works", "server", s.settings.Name, "retryIn", bindRetry)
		}
		_ = l.rest(ctx, time.After(bindRetry))
	}
	return nil
}

// life is one Run of a server.
type life struct {
	*Server
	cur   *listening     // nil: silent
	asked netip.AddrPort // where cur was told to listen
	gone  sync.WaitGroup // listeners that were left, until their last answers
}

// settle makes the server listen where it should. The old address is left in
// any case: it is not what was asked for any more, and it may be what is in the
// way of the new one.
func (l *life) settle(ctx context.Context) error {
	want := l.wanted()
	switch {
	case !want.IsValid():
		l.leave()
		return nil
	case l.cur != nil && l.asked == want:
		return nil
	}
	listener, err := listen(ctx, "tcp", want)
	if moves := l.cur != nil; moves {
		l.leave()
		if errors.Is(err, syscall.EADDRINUSE) {
			listener, err = listen(ctx, "tcp", want)
		}
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", l.settings.Name, err)
	}
	l.cur = serve(listener, newHTTPServer(ctx, l.settings.Handler))
	l.asked = want
	l.setBound(boundTo(listener))
	klog.FromContext(ctx).V(2).Info("Listening", "server", l.settings.Name, "address", listener.Addr())
	return nil
}

// leave gives the address up. Requests under way have a moment to end.
func (l *life) leave() {
	if l.cur == nil {
		return
	}
	l.setBound(netip.AddrPort{})
	l.cur.close(&l.gone)
	l.cur = nil
}

// rest waits for ctx to end, another address, a deadline, or the end of serving,
// which it returns.
func (l *life) rest(ctx context.Context, deadline <-chan time.Time) error {
	cur := l.cur
	var ended chan struct{}
	if cur != nil {
		ended = cur.ended
	}
	select {
	case <-ctx.Done():
	case <-l.changed:
	case <-deadline:
	case <-ended:
		l.leave()
		return fmt.Errorf("serve %s at %v: %w", l.settings.Name, l.asked, cur.err)
	}
	return nil
}

// notify leaves a token, unless there is one.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
