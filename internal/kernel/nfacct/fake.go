package nfacct

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Fake is packet counters in memory.
type Fake struct {
	mu       sync.Mutex
	counters map[string]*fakeCounter
	fail     error
}

type fakeCounter struct {
	count Count
	rules int // that name it
}

var _ Interface = (*Fake)(nil)

// NewFake returns a namespace without counters.
func NewFake() *Fake { return &Fake{counters: map[string]*fakeCounter{}} }

// Add counts more, as packets would that a rule matches. It panics if no such
// counter is there.
func (k *Fake) Add(name string, n Count) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.counters[name]
	c.count.Packets += n.Packets
	c.count.Bytes += n.Bytes
}

// Refer changes how many rules name a counter. It panics if no such counter is
// there.
func (k *Fake) Refer(name string, by int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counters[name].rules += by
}

// Names returns the counters there are, sorted.
func (k *Fake) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.counters))
}

// Fail makes everything end with an error, until it is nil: [ErrUnsupported]
// makes a kernel without counters.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Ensure makes a counter of memory.
func (k *Fake) Ensure(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.check(name); err != nil {
		return fmt.Errorf("create counter %s: %w", name, err)
	}
	if k.counters[name] == nil {
		k.counters[name] = &fakeCounter{}
	}
	return nil
}

// Counter reads a counter of memory.
func (k *Fake) Counter(name string) (Count, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.counters[name]
	err := k.check(name)
	if err == nil && c == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Count{}, fmt.Errorf("read counter %s: %w", name, err)
	}
	return c.count, nil
}

// Delete forgets a counter.
func (k *Fake) Delete(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.counters[name]
	err := k.check(name)
	switch {
	case err != nil:
	case c == nil:
		err = ErrNotFound
	case c.rules > 0:
		err = ErrBusy
	}
	if err != nil {
		return fmt.Errorf("delete counter %s: %w", name, err)
	}
	delete(k.counters, name)
	return nil
}

// check returns why nothing about a counter can be done.
func (k *Fake) check(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return k.fail
}

// Close does nothing: the counters stay.
func (k *Fake) Close() error { return nil }
