package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"testing"
	"time"

	"sluice/internal/proxy"
)

// fault is what goes wrong in one call.
type fault uint8

const (
	noFault  fault = iota
	nothing        // the kernel is left as it was
	halfWay        // some of it is done
	slowness       // it takes a second
)

var errHalfWay = errors.New("the kernel took half of it")

// fakePlane holds a State as a kernel does. It takes nothing on trust: every
// old row that it is given must be what it holds.
type fakePlane struct {
	t *testing.T

	mu     sync.Mutex
	kernel *proxy.State
	broken bool // a row is not as Apply expects: it fails, as a kernel does
	faults []fault
	refuse map[proxy.PortKey]string
	calls  []string

	seen      chan string // what Watch reports
	unwatched func()      // called before Watch begins, which then has missed it; nil: Watch misses nothing
	watchErrs chan error
}

func newFakePlane(t *testing.T) *fakePlane {
	return &fakePlane{
		t:         t,
		kernel:    proxy.NewState(),
		broken:    true, // Before the first Sync nobody knows what is there.
		refuse:    map[proxy.PortKey]string{},
		seen:      make(chan string, 1024),
		watchErrs: make(chan error),
	}
}

func (f *fakePlane) Sync(ctx context.Context, s *proxy.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("sync %d", len(s.Rows)))
	if err := f.fail(ctx); err != nil {
		return err
	}
	refused := map[proxy.PortKey]error{}
	f.kernel = &proxy.State{Rows: map[proxy.PortKey]*proxy.ServicePort{}, Node: s.Node, CIDRs: s.CIDRs}
	for k, row := range s.Rows {
		if why, no := f.refuse[k]; no {
			refused[k] = errors.New(why)
		} else {
			f.kernel.Rows[k] = row
		}
	}
	f.broken = false
	return refusedError(refused)
}

func (f *fakePlane) Apply(ctx context.Context, d *proxy.Delta) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("apply +%d -%d", len(d.Upserts), len(d.Removes)))
	if d.Empty() {
		f.t.Error("Apply was called for nothing")
	}
	if f.broken {
		return errors.New("a rule is not where it was left")
	}
	f.check(d)
	if err := f.fail(ctx); err != nil {
		if errors.Is(err, errHalfWay) {
			f.kernel.Apply(&proxy.Delta{Upserts: d.Upserts[:len(d.Upserts)/2], Removes: d.Removes, Node: d.Node})
			f.broken = true
		}
		return err
	}
	refused := map[proxy.PortKey]error{}
	went := &proxy.Delta{Node: d.Node, CIDRs: d.CIDRs}
	for _, u := range d.Upserts {
		if why, no := f.refuse[u.New.Key]; no {
			refused[u.New.Key] = errors.New(why)
		} else {
			went.Upserts = append(went.Upserts, u)
		}
	}
	for _, r := range d.Removes {
		if why, no := f.refuse[r.Key]; no {
			refused[r.Key] = errors.New(why)
		} else {
			went.Removes = append(went.Removes, r)
		}
	}
	f.kernel.Apply(went)
	return refusedError(refused)
}

// check compares the old rows of a step with those held.
func (f *fakePlane) check(d *proxy.Delta) {
	seen := map[proxy.PortKey]bool{}
	one := func(k proxy.PortKey, old *proxy.ServicePort) {
		if held := f.kernel.Rows[k]; !reflect.DeepEqual(held, old) {
			f.t.Errorf("%v: given old row %v, the kernel holds %v", k, old, held)
		}
		if seen[k] {
			f.t.Errorf("%v: twice in one step", k)
		}
		seen[k] = true
	}
	for _, u := range d.Upserts {
		one(u.New.Key, u.Old)
	}
	for _, r := range d.Removes {
		one(r.Key, r)
	}
}

// fail plays the next fault.
func (f *fakePlane) fail(ctx context.Context) error {
	if len(f.faults) == 0 {
		return nil
	}
	next := f.faults[0]
	f.faults = f.faults[1:]
	switch next {
	case noFault:
		return nil
	case nothing:
		return fmt.Errorf("busy: %w", proxy.ErrNothingApplied)
	case halfWay:
		return errHalfWay
	case slowness:
		// A mutex held while time passes would stop the fake clock.
		f.mu.Unlock()
		<-time.After(time.Second)
		f.mu.Lock()
		return ctx.Err()
	default:
		panic(fmt.Sprintf("unknown fault %d", next))
	}
}

func refusedError(rows map[proxy.PortKey]error) error {
	if len(rows) == 0 {
		return nil
	}
	return fmt.Errorf("commit: %w", &proxy.RefusedError{Rows: rows})
}

func (f *fakePlane) Watch(ctx context.Context, missed func(), changed func(string)) error {
	if f.unwatched != nil {
		f.unwatched()
		missed()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-f.watchErrs:
			return err
		case what := <-f.seen:
			changed(what)
		}
	}
}

func (f *fakePlane) Close() error { return nil }

// with changes the fake between calls.
func (f *fakePlane) with(change func(*fakePlane)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// drift takes a row away behind our back.
func (f *fakePlane) drift(k proxy.PortKey) {
	f.with(func(f *fakePlane) {
		delete(f.kernel.Rows, k)
		f.broken = true
	})
	f.seen <- "row gone"
}

// takeCalls returns the calls since the last time.
func (f *fakePlane) takeCalls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// mirror is an observer that knows the kernel only by what it is told.
type mirror struct {
	mu    sync.Mutex
	state *proxy.State
	told  int
}

func (m *mirror) Applied(_ context.Context, _ *proxy.State, d *proxy.Delta) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Apply(d)
	m.told++
}

func (m *mirror) rows() map[proxy.PortKey]*proxy.ServicePort {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.state.Rows)
}
