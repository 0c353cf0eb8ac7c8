package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// fault is what goes wrong in one call.
type fault uint8

const (
	noFault  fault = iota
	nothing        // the kernel is left as it was
	halfWay        // some of it is done, and nobody knows what
	someRows       // some rows are done, and those that follow can be tried again
	slowness       // it takes a second
)

var errHalfWay = errors.New("the kernel took half of it")

// fakePlane holds a State as a kernel does.
type fakePlane struct {
	t *testing.T

	mu     sync.Mutex
	kernel *proxy.State
	broken bool // a row is not as Apply expects: it fails, as a kernel does
	faults []fault
	refuse map[proxy.PortKey]string
	base   bool // what is refused is written all the same, but for something on top
	calls  []string

	partial    bool   // what is refused is refused in part
	refusesNew bool   // only versions are refused that the kernel does not have
	leftovers  string // why what belongs to no row is not removed; empty if it is

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

func (f *fakePlane) Sync(ctx context.Context, s *proxy.State) (proxy.Refused, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("sync %d", len(s.Rows)))
	if err := f.fail(ctx); err != nil {
		return nil, err
	}
	refused := proxy.Refused{}
	had := f.kernel.Rows
	f.kernel = &proxy.State{Rows: map[proxy.PortKey]*proxy.ServicePort{}, Node: s.Node, CIDRs: s.CIDRs}
	for k, row := range s.Rows {
		if why, no := f.refuse[k]; no && !(f.refusesNew && had[k] == row) {
			refused[k] = f.refusal(why)
		}
		if refused[k] == nil || f.base {
			f.kernel.Rows[k] = row
		}
	}
	f.broken = false
	f.refuseLeftovers(refused)
	return refused, nil
}

func (f *fakePlane) Apply(ctx context.Context, s *proxy.State, c *proxy.Changed) (proxy.Refused, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := 0
	for _, k := range c.Rows {
		if s.Rows[k] != nil {
			wanted++
		}
	}
	call := fmt.Sprintf("apply +%d -%d", wanted, len(c.Rows)-wanted)
	if c.Leftovers {
		call += " leftovers"
	}
	f.calls = append(f.calls, call)
	if c.Empty() {
		f.t.Error("Apply was called for nothing")
	}
	if !slices.IsSortedFunc(c.Rows, proxy.ComparePortKeys) || len(slices.Compact(slices.Clone(c.Rows))) != len(c.Rows) {
		f.t.Errorf("rows %v are not each once and in order", c.Rows)
	}
	if f.broken {
		return nil, fmt.Errorf("a rule is not where it was left: %w", proxy.ErrNeedSync)
	}
	rows := c.Rows
	err := f.fail(ctx)
	switch {
	case errors.Is(err, errHalfWay):
		rows = rows[:len(rows)/2]
		f.broken = errors.Is(err, proxy.ErrNeedSync)
	case err != nil:
		return nil, err
	}
	refused := proxy.Refused{}
	for _, k := range rows {
		why, no := f.refuse[k]
		if no = no && (s.Rows[k] != nil || f.kernel.Rows[k] != nil); no {
			refused[k] = f.refusal(why)
		}
		switch {
		case no && !f.base:
		case s.Rows[k] != nil:
			f.kernel.Rows[k] = s.Rows[k]
		default:
			delete(f.kernel.Rows, k)
		}
	}
	if c.Node {
		f.kernel.Node = s.Node
	}
	if c.Leftovers {
		f.refuseLeftovers(refused)
	}
	if c.CIDRs {
		f.kernel.CIDRs = s.CIDRs
	}
	return refused, err
}

func (f *fakePlane) refuseLeftovers(refused proxy.Refused) {
	if f.leftovers != "" {
		refused[proxy.PortKey{}] = f.refusal(f.leftovers)
	}
}

func (f *fakePlane) refusal(why string) error {
	if f.partial {
		return &proxy.PartialError{Err: errors.New(why)}
	}
	return errors.New(why)
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
		return errors.New("busy")
	case halfWay:
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, errHalfWay)
	case someRows:
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

// nobody is an observer that does nothing.
type nobody struct{}

func (nobody) Queued()                                                  {}
func (nobody) ServiceSeen(int)                                          {}
func (nobody) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (nobody) NodeSeen(*v1.Node)                                        {}
func (nobody) Repairing()                                               {}
func (nobody) Began(*proxy.Delta)                                       {}
func (nobody) Done(context.Context, Result)                             {}

// mirror is an observer that knows the kernel only by what it is told. It takes
// nothing on trust: every old row must be what it was told before.
type mirror struct {
	nobody
	t     *testing.T
	mu    sync.Mutex
	state *proxy.State
	told  int // how often there was something to tell
	last  Result
	at    time.Time // when that came
}

func (m *mirror) Done(_ context.Context, r Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.at = r, time.Now()
	if (r.Err == nil) == (r.Changed == nil) {
		m.t.Errorf("error %v and change %v", r.Err, r.Changed)
	}
	if r.Err != nil || r.Changed.Empty() && !r.Full {
		return
	}
	d := r.Changed
	seen := map[proxy.PortKey]bool{}
	one := func(k proxy.PortKey, old *proxy.ServicePort) {
		if held := m.state.Rows[k]; held != old {
			m.t.Errorf("%v: told of old row %v, it was %v", k, old, held)
		}
		if seen[k] {
			m.t.Errorf("%v: twice in one step", k)
		}
		seen[k] = true
	}
	for _, u := range d.Upserts {
		one(u.New.Key, u.Old)
	}
	for _, r := range d.Removes {
		one(r.Key, r)
	}
	m.state.Apply(d)
	m.told++
}

// outcome returns what the last sync came to, and when.
func (m *mirror) outcome() (Result, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.at
}

func (m *mirror) rows() map[proxy.PortKey]*proxy.ServicePort {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.state.Rows)
}

// verifiedPlane is one whose kernel does not announce what others change.
type verifiedPlane struct {
	*fakePlane
	damaged map[proxy.PortKey]string // until the next Sync; with the zero key, what all rows stand on
	reads   int
	err     error // what reads return

	rewritten proxy.Rewritten
}

func (v *verifiedPlane) Rewritten() (r proxy.Rewritten) {
	v.with(func(*fakePlane) { r = v.rewritten })
	return r
}

func (v *verifiedPlane) Verify(_ context.Context, row proxy.PortKey) (found []proxy.Difference, err error) {
	v.with(func(*fakePlane) {
		v.reads++
		err = v.err
		if what, ok := v.damaged[row]; ok {
			found = []proxy.Difference{{Object: "server", Want: "weight 1", Have: what}}
		}
	})
	return found, err
}

func (v *verifiedPlane) Sync(ctx context.Context, s *proxy.State) (proxy.Refused, error) {
	v.with(func(*fakePlane) { clear(v.damaged) })
	return v.fakePlane.Sync(ctx, s)
}
