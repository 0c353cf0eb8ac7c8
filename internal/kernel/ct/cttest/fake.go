package cttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice/internal/kernel/ct"
)

// Fake is connection tracking in memory. Unlike [ct.Conn] it may be used by
// several goroutines, so that a test can look while somebody works.
type Fake struct {
	mu    sync.Mutex
	flows []ct.Flow
	ended []*ct.Flow // not taken yet; nil: some were lost
	last  uint32
	fail  error
	count Count
}

// Count is what was asked of a Fake.
type Count struct {
	Dumps, Deletes int
	Most           int // flows that a dump returned
}

var (
	_ ct.Interface = (*Fake)(nil)
	_ ct.Ends      = (*Fake)(nil)
)

// NewFake returns connection tracking that has seen nothing.
func NewFake() *Fake { return &Fake{} }

// Add makes the Fake track flows, as packets would.
func (k *Fake) Add(flows ...ct.Flow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range flows {
		k.last++
		f.ID = k.last
		k.flows = append(k.flows, f)
	}
}

// Flows returns what is tracked, oldest first.
func (k *Fake) Flows() []ct.Flow {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.flows)
}

// Fail makes every dump and deletion end with an error, until it is nil. After
// one that wraps [ct.ErrIncomplete] dumps return flows too, and deletions work.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Reset returns what was asked since the last Reset.
func (k *Fake) Reset() Count {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.count
	k.count = Count{}
	return c
}

// Dump returns flows of memory.
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

// Each goes through the translated flows of memory.
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

// Carry changes what a flow that is tracked has carried and how it stands.
func (k *Fake) Carry(f ct.Flow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.flows {
		if have := &k.flows[i]; have.Protocol == f.Protocol && have.Orig == f.Orig {
			have.Carried, have.Closed = f.Carried, f.Closed
		}
	}
}

// Lose makes flows end without each being told; that some were lost may be.
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

// Take tells of deletions.
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

// Delete forgets a flow.
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

// Close does nothing: what is tracked stays.
func (k *Fake) Close() error { return nil }
