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
	// inspectAttempts is how often an inspection that gave way to a sync begins
	// again, and inspectPause after how long: a sync should be over by then.
	inspectAttempts = 20
	inspectPause    = 50 * time.Millisecond
)

// errGaveWay is why an inspection was ended.
var errGaveWay = errors.New("syncs came in between")

// turns has either a sync or an inspection use the dataplane. A sync does not wait
// for inspections, however many there are and however long they take: the one under
// way is ended, and no other begins.
type turns struct {
	taken  chan struct{} // has an element while somebody uses the dataplane
	ended  chan struct{} // closed when nobody may any more
	wanted atomic.Bool   // a sync waits
	stop   atomic.Pointer[context.CancelCauseFunc]
}

func newTurns() turns { return turns{taken: make(chan struct{}, 1), ended: make(chan struct{})} }

// take takes the turn of a sync.
func (t *turns) take() {
	t.wanted.Store(true)
	if stop := t.stop.Load(); stop != nil {
		(*stop)(errGaveWay)
	}
	t.taken <- struct{}{}
	t.wanted.Store(false)
}

func (t *turns) give() { <-t.taken }

// inspect calls f with a context that ends when a sync wants the turn.
func (t *turns) inspect(ctx context.Context, f func(context.Context) error) error {
	select {
	case t.taken <- struct{}{}:
		defer t.give()
	case <-t.ended:
		return errors.New("the daemon is about to end")
	case <-ctx.Done():
		return fmt.Errorf("wait for a sync to end: %w", ctx.Err())
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t.stop.Store(&stop)
	defer t.stop.Store(nil)
	if t.wanted.Load() {
		return errGaveWay
	}
	err := f(ctx)
	if err != nil && context.Cause(ctx) == errGaveWay {
		return errGaveWay
	}
	return err
}

// Inspect asks the kernel what it has of a row, between two syncs.
func (e *Engine) Inspect(ctx context.Context, what proxy.Inspection) (is proxy.Inspected, err error) {
	d, ok := e.dataplane.(proxy.Inspector)
	if !ok {
		return is, fmt.Errorf("this mode cannot read single objects back: %w", errors.ErrUnsupported)
	}
	for range inspectAttempts {
		err = e.turns.inspect(ctx, func(ctx context.Context) (err error) {
			is, err = d.Inspect(ctx, what)
			return err
		})
		if err != errGaveWay {
			return is, err
		}
		select {
		case <-time.After(inspectPause):
		case <-ctx.Done():
		}
	}
	return proxy.Inspected{}, err
}
