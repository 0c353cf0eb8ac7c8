package linktest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// Fake is a host whose addresses are set by hand.
type Fake struct {
	mu       sync.Mutex
	addrs    []netip.Addr
	err      error
	watchers map[chan struct{}]struct{}
}

// Set replaces the addresses and notifies all watches.
func (f *Fake) Set(addrs ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = addrs
	for ch := range f.watchers {
		select {
		case ch <- struct{}{}:
		default: // the channel has a token already
		}
	}
}

// Fail makes List and Watch fail with err, until it is called with nil.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// Break ends all watches, as if events were lost.
func (f *Fake) Break() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.watchers {
		close(ch)
	}
	f.watchers = nil
}

// Watches returns the number of watches.
func (f *Fake) Watches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}

// List returns the addresses.
func (f *Fake) List() ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.addrs), f.err
}

// Watch returns a channel that gets a token with every Set.
func (f *Fake) Watch(ctx context.Context) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	ch := make(chan struct{}, 1)
	if f.watchers == nil {
		f.watchers = map[chan struct{}]struct{}{}
	}
	f.watchers[ch] = struct{}{}
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, open := f.watchers[ch]; open {
			delete(f.watchers, ch)
			close(ch)
		}
	})
	return ch, nil
}
