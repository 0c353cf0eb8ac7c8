package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
)

// inspected is a dataplane that fails a test that uses it twice at a time.
type inspected struct {
	*fakePlane
	t    *testing.T
	busy bool
}

func (i *inspected) use(f func()) {
	if i.busy {
		i.t.Error("two use the dataplane at a time")
	}
	i.busy = true
	f()
	i.busy = false
}

func (i *inspected) Sync(ctx context.Context, s *proxy.State) (r proxy.Refused, err error) {
	i.use(func() { r, err = i.fakePlane.Sync(ctx, s) })
	return r, err
}

func (i *inspected) Apply(ctx context.Context, s *proxy.State, c *proxy.Changed) (r proxy.Refused, err error) {
	i.use(func() { r, err = i.fakePlane.Apply(ctx, s, c) })
	return r, err
}

// Inspect takes a second.
func (i *inspected) Inspect(ctx context.Context, _ proxy.Inspection) (out proxy.Inspected, err error) {
	i.use(func() {
		select {
		case <-time.After(time.Second):
			out.Objects = 7
		case <-ctx.Done():
			err = ctx.Err()
		}
	})
	return out, err
}

// TestSyncsComeFirst checks that a sync waits for none of many inspections, and that all
// of them succeed after it.
func TestSyncsComeFirst(t *testing.T) {
	run(t, func(s *Settings) { s.Dataplane = &inspected{fakePlane: s.Dataplane.(*fakePlane), t: t} }, func(l *lab) {
		l.started()
		const many = 10
		done := make(chan error, many)
		for range many {
			go func() {
				out, err := l.Inspect(l.t.Context(), proxy.Inspection{})
				if out.Objects != 7 {
					err = errors.Join(err, errors.New("nothing was inspected"))
				}
				done <- err
			}()
		}
		time.Sleep(100 * time.Millisecond) // in the middle of the first
		l.OnEndpointSliceAdd(endpoints("web", 7))
		l.wantCalls("apply +1 -0") // at once
		for range many {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestInspectBetweenSyncs checks that inspections never use the dataplane during a sync,
// nor after SyncLoop has returned.
func TestInspectBetweenSyncs(t *testing.T) {
	var engine *Engine
	run(t, func(s *Settings) { s.Dataplane = &inspected{fakePlane: s.Dataplane.(*fakePlane), t: t} }, func(l *lab) {
		engine = l.Engine
		l.started()
		done := make(chan proxy.Inspected)
		go func() {
			out, err := l.Inspect(l.t.Context(), proxy.Inspection{})
			if err != nil {
				t.Error(err)
			}
			done <- out
		}()
		synctest.Wait() // in the middle of it
		l.plane.with(func(f *fakePlane) { f.faults = []fault{slowness} })
		l.OnEndpointSliceAdd(endpoints("web", 7))
		synctest.Wait() // in the middle of the sync
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Inspect(ctx, proxy.Inspection{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("during a sync: %v", err)
		}
		if out := <-done; out.Objects != 7 {
			t.Errorf("inspected %+v", out)
		}
		if _, err := l.Inspect(l.t.Context(), proxy.Inspection{}); err != nil {
			t.Errorf("after a sync: %v", err)
		}
		l.stop()
		synctest.Wait()
		if _, err := engine.Inspect(l.t.Context(), proxy.Inspection{}); err == nil {
			t.Error("no error after the end")
		}
	})
}

func TestInspectNeedsAModeThatCan(t *testing.T) {
	run(t, nil, func(l *lab) {
		if _, err := l.Inspect(l.t.Context(), proxy.Inspection{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("error %v", err)
		}
	})
}
