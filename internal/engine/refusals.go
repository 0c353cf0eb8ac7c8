package engine

import (
	"context"

	"sluice/internal/proxy"
)

// Refusal is a change in what the kernel refuses.
type Refusal struct {
	Key    proxy.PortKey
	Reason string // empty: it is refused no more, or gone
}

// RefusalObserver is an [Observer] that is also told which rows the kernel
// refuses.
type RefusalObserver interface {
	// Refused is called when something about that changes, by the goroutine
	// that calls Applied and before it does. It returns at once.
	Refused(ctx context.Context, changes []Refusal)
}

// tellRefusals passes on what changed in what the kernel refuses.
func (e *Engine) tellRefusals(ctx context.Context, all []refusal) {
	if len(all) == 0 {
		return
	}
	changes := make([]Refusal, len(all))
	for i, n := range all {
		changes[i] = Refusal{n.key, n.reason}
	}
	for _, o := range e.observers {
		if r, ok := o.(RefusalObserver); ok {
			r.Refused(ctx, changes)
		}
	}
}
