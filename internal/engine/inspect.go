package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sluice/internal/proxy"
)

const (
	// inspectAttempts is how often an inspection is tried that syncs interrupt, and
	// inspectPause the time between two attempts, in which a sync usually ends.
	inspectAttempts = 20
	inspectPause    = 50 * time.Millisecond
)

// errInterrupted is returned by an inspection that was ended in favour of a sync.
var errInterrupted = errors.New("interrupted by a sync")

// dataplaneAccess serialises the use of the dataplane by syncs and inspections. Syncs
// have priority, however many inspections there are and however long they take: a
// sync cancels the inspection in progress, and no other begins before the sync.
type dataplaneAccess struct {
	held    chan struct{} // holds an element while the dataplane is in use
	closed  chan struct{} // closed when the dataplane must not be used any more
	waiting atomic.Bool   // a sync waits
	cancel  atomic.Pointer[context.CancelCauseFunc]
}

func newDataplaneAccess() dataplaneAccess {
	return dataplaneAccess{held: make(chan struct{}, 1), closed: make(chan struct{})}
}

// lock acquires the dataplane for a sync.
func (a *dataplaneAccess) lock() {
	a.waiting.Store(true)
	if cancel := a.cancel.Load(); cancel != nil {
		(*cancel)(errInterrupted)
	}
	a.held <- struct{}{}
	a.waiting.Store(false)
}

func (a *dataplaneAccess) unlock() { <-a.held }

// inspect calls f with a context that is cancelled when a sync needs the dataplane.
// It returns errInterrupted if that made f fail.
func (a *dataplaneAccess) inspect(ctx context.Context, f func(context.Context) error) error {
	select {
	case a.held <- struct{}{}:
		defer a.unlock()
	case <-a.closed:
		return errors.New("the daemon is shutting down")
	case <-ctx.Done():
		return fmt.Errorf("wait for a sync to end: %w", ctx.Err())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.cancel.Store(&cancel)
	defer a.cancel.Store(nil)
	if a.waiting.Load() {
		return errInterrupted
	}
	err := f(ctx)
	if err != nil && context.Cause(ctx) == errInterrupted {
		return errInterrupted
	}
	return err
}

// Inspect reads back what the kernel has for a row. It runs between syncs and is
// repeated if one interrupts it. Any goroutine may call it.
func (e *Engine) Inspect(ctx context.Context, what proxy.Inspection) (is proxy.Inspected, err error) {
	d, ok := e.dataplane.(proxy.Inspector)
	if !ok {
		return is, fmt.Errorf("this mode cannot read back single objects: %w", errors.ErrUnsupported)
	}
	for range inspectAttempts {
		err = e.access.inspect(ctx, func(ctx context.Context) (err error) {
			is, err = d.Inspect(ctx, what)
			return err
		})
		if err != errInterrupted {
			return is, err
		}
		select {
		case <-time.After(inspectPause):
		case <-ctx.Done():
		}
	}
	return proxy.Inspected{}, err
}
