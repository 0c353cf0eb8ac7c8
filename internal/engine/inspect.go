package engine

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/proxy"
)

// Inspect asks the kernel what it has of a row, between two syncs.
func (e *Engine) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	d, ok := e.dataplane.(proxy.Inspector)
	if !ok {
		return proxy.Inspected{}, fmt.Errorf("this mode cannot read single objects back: %w", errors.ErrUnsupported)
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
		return d.Inspect(ctx, what)
	case <-e.ended:
		return proxy.Inspected{}, errors.New("the daemon is about to end")
	case <-ctx.Done():
		return proxy.Inspected{}, fmt.Errorf("wait for a sync to end: %w", ctx.Err())
	}
}
