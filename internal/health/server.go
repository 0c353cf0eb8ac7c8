package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
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
	want     atomic.Value // netip.AddrPort
	bound    atomic.Value // netip.AddrPort: where it listens; the invalid one: nowhere
}

// NewServer returns a server that does nothing before Run.
func NewServer(s ServerSettings) *Server {
	server := &Server{settings: s, changed: make(chan struct{}, 1)}
	server.want.Store(s.Address)
	server.bound.Store(netip.AddrPort{})
	return server
}

// SetAddress moves the server. The invalid address silences it.
func (s *Server) SetAddress(a netip.AddrPort) {
	s.want.Store(a)
	notify(s.changed)
}

// listen binds the address that is wanted now.
func (s *Server) listen(ctx context.Context, a netip.AddrPort) (*listening, error) {
	l, err := listen(ctx, "tcp", a, s.settings.Handler)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", s.settings.Name, err)
	}
	return l, nil
}

// Available returns an error if the server must have its address and cannot.
func (s *Server) Available(ctx context.Context) error {
	want := s.want.Load().(netip.AddrPort)
	if !s.settings.HardFail || !want.IsValid() {
		return nil
	}
	l, err := s.listen(ctx, want)
	if err != nil {
		return err
	}
	return l.listener.Close()
}

// Run serves until ctx ends, and then returns nil. An address that cannot be had
// is tried again until it can, or ends Run if that is how the server was made.
func (s *Server) Run(ctx context.Context) error {
	r := serverRun{Server: s}
	defer r.gone.Wait()
	defer r.leave()
	complaint := ""
	for ctx.Err() == nil {
		var retry <-chan time.Time
		switch err := r.settle(ctx); {
		case err == nil:
			complaint = ""
		case ctx.Err() != nil:
			return nil
		case s.settings.HardFail:
			return err
		default:
			retry = time.After(bindRetry)
			if text := err.Error(); text != complaint {
				complaint = text
				klog.FromContext(ctx).Error(err, "Will try again until it works", "server", s.settings.Name, "retryIn", bindRetry)
			}
		}
		var ended chan struct{}
		if r.cur != nil {
			ended = r.cur.ended
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

// serverRun is one Run of a Server.
type serverRun struct {
	*Server
	cur   *listening     // nil: silent
	asked netip.AddrPort // where cur was told to listen
	gone  sync.WaitGroup // listeners that were left, until their last answers
}

// settle makes the server listen where it should. If it has ceased to listen,
// it says why, and listens again the next time.
func (r *serverRun) settle(ctx context.Context) error {
	want := r.want.Load().(netip.AddrPort)
	if r.cur != nil && r.asked == want {
		select {
		case <-r.cur.ended:
			err := r.cur.err
			r.leave()
			return fmt.Errorf("serve %s at %v: %w", r.settings.Name, want, err)
		default:
			return nil
		}
	}
	if !want.IsValid() {
		r.leave()
		return nil
	}
	next, err := r.Server.listen(ctx, want)
	if r.cur != nil { // It moves, and may have been in its own way.
		r.leave()
		if errors.Is(err, syscall.EADDRINUSE) {
			next, err = r.Server.listen(ctx, want)
		}
	}
	if err != nil {
		return err
	}
	next.serve()
	r.cur, r.asked = next, want
	r.bound.Store(next.at())
	klog.FromContext(ctx).V(2).Info("Listening", "server", r.settings.Name, "address", next.listener.Addr())
	return nil
}

func (r *serverRun) leave() {
	if r.cur != nil {
		r.bound.Store(netip.AddrPort{})
		r.cur.close(&r.gone)
		r.cur = nil
	}
}

// notify leaves a token for whoever waits, unless there is one.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
