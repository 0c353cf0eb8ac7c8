package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
)

// notebook is an observer that writes down what it is told, between the writes
// of the dataplane.
type notebook struct {
	nobody
	plane *fakePlane
}

func (n notebook) note(line string) {
	n.plane.with(func(f *fakePlane) { f.calls = append(f.calls, line) })
}

func (n notebook) Began(d *proxy.Delta) {
	n.note(fmt.Sprintf("began +%d -%d", len(d.Upserts), len(d.Removes)))
}

func (n notebook) Done(_ context.Context, r Result) {
	if r.Err != nil {
		n.note("failed")
		return
	}
	n.note(fmt.Sprintf("done +%d -%d", len(r.Changed.Upserts), len(r.Changed.Removes)))
}

// TestWritesAreAnnounced checks that an observer is notified of each write before it
// begins, and of its result when it has ended.
func TestWritesAreAnnounced(t *testing.T) {
	run(t, func(s *Settings) { s.Observer = notebook{plane: s.Dataplane.(*fakePlane)} }, func(l *lab) {
		l.start()
		l.wantCalls("began +2 -0", "sync 2", "done +2 -0")
		for _, c := range []struct {
			name  string
			event func()
			want  []string
		}{
			{"a step", func() { l.change(1) }, []string{"began +1 -0", "apply +1 -0", "done +1 -0"}},
			{"the kernel takes nothing", func() {
				l.plane.faults = []fault{nothing}
				l.change(2)
			}, []string{"began +1 -0", "apply +1 -0", "failed", "began +1 -0", "apply +1 -0", "done +1 -0"}},
			{"the kernel takes half", func() {
				l.plane.faults = []fault{halfWay}
				l.change(3)
			}, []string{"began +1 -0", "apply +1 -0", "failed", "began +1 -0", "sync 2", "done +1 -0"}},
			{"the kernel refuses all", func() {
				l.refuse("web", "busy")
				l.change(4)
			}, []string{"began +1 -0", "apply +1 -0", "done +0 -0", "began +1 -0", "apply +1 -0", "done +0 -0"}},
		} {
			c.event()
			time.Sleep(2*retryMin - ms)
			synctest.Wait()
			if got := l.plane.takeCalls(); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		}
	})
}
