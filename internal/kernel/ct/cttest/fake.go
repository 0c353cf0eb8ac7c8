package cttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice/internal/kernel/ct"
)

// Fake is connection tracking in memory. Unlike [ct.Conn] it may be used by several goroutines, so
// that a test can inspect it at any time.
type Fake struct {
	mu    sync.Mutex
	flows []ct.Flow
	ended []*ct.Flow // not taken yet; nil entries stand for lost events
	last  uint32
	fail  error
	count Count
}

// Count counts the calls of a Fake.
type Count struct {
	Dumps, Deletes int
	Most           int // the maximum number of flows that a dump returned
}

var (
	_ ct.Interface = (*Fake)(nil)
	_ ct.Ends      = (*Fake)(nil)
)

// NewFake returns a Fake without flows.
func NewFake() *Fake { return &Fake{} }

// Add adds flows, as packets would.
func (k *Fake) Add(flows ...ct.Flow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range flows {
		k.last++
		f.ID = k.last
		k.flows = append(k.flows, f)
	}
}

// Flows returns the tracked flows, oldest first.
func (k *Fake) Flows() []ct.Flow {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.flows)
}

// Fail makes every dump and deletion return an error, until it is called with nil. With an error
// that wraps [ct.ErrIncomplete], dumps return flows as well, and deletions work.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Reset returns the counts since the last Reset.
func (k *Fake) Reset() Count {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.count
	k.count = Count{}
	return c
}

// Dump implements [ct.Interface].
func (k *Fake) Dump(ctx context.Context, f ct.Filter, keep func(*ct.Flow) bool) ([]ct.Flow, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Dumps++
	var out []ct.Flow
	for _, flow := range k.flows {
		if (f.Most == 0 || len(out) < f.Most) && f.Matches(&flow) && keep(&flow) {
			out = append(out, flow)
		}
	}
	k.count.Most = max(k.count.Most, len(out))
	switch {
	case errors.Is(k.fail, ct.ErrIncomplete):
		return out, fmt.Errorf("dump %v flows: %w", f, k.fail)
	case k.fail != nil:
		return nil, fmt.Errorf("dump %v flows: %w", f, k.fail)
	default:
		return out, nil
	}
}

// Each implements [ct.Interface].
func (k *Fake) Each(ctx context.Context, begin func(), each func(*ct.Flow)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Dumps++
	begin()
	for _, f := range k.flows {
		if f.Translated {
			each(&f)
		}
	}
	return k.fail
}

// Carry updates the traffic and the state of a tracked flow.
func (k *Fake) Carry(f ct.Flow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.flows {
		if have := &k.flows[i]; have.Protocol == f.Protocol && have.Orig == f.Orig {
			have.Carried, have.Closed = f.Carried, f.Closed
		}
	}
}

// Lose ends flows without events; if told, Take reports that events were lost.
func (k *Fake) Lose(flows []ct.Flow, told bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flows = slices.DeleteFunc(k.flows, func(have ct.Flow) bool {
		return slices.ContainsFunc(flows, func(f ct.Flow) bool { return have.Protocol == f.Protocol && have.Orig == f.Orig })
	})
	if told {
		k.ended = append(k.ended, nil)
	}
}

// Take implements [ct.Ends]: it reports flows that Delete removed.
func (k *Fake) Take(each func(*ct.Flow)) error {
	k.mu.Lock()
	ended := k.ended
	k.ended = nil
	k.mu.Unlock()
	for _, f := range ended {
		each(f)
	}
	return nil
}

// Delete implements [ct.Interface].
func (k *Fake) Delete(ctx context.Context, f *ct.Flow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Deletes++
	if k.fail != nil && !errors.Is(k.fail, ct.ErrIncomplete) {
		return fmt.Errorf("delete flow %v: %w", f, k.fail)
	}
	at := slices.IndexFunc(k.flows, func(have ct.Flow) bool {
		return have.ID == f.ID && have.Zone == f.Zone && have.Protocol == f.Protocol && have.Orig == f.Orig
	})
	if at < 0 {
		return ct.ErrNotFound
	}
	if gone := k.flows[at]; gone.Translated {
		k.ended = append(k.ended, &gone)
	}
	k.flows = slices.Delete(k.flows, at, at+1)
	return nil
}

// Close does nothing: the flows stay.
func (k *Fake) Close() error { return nil }
