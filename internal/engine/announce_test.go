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
	*fakePlane
}

func (n notebook) note(line string) {
	n.with(func(f *fakePlane) { f.calls = append(f.calls, line) })
}

func (n notebook) Applying(_ context.Context, d *proxy.Delta) {
	if d == nil {
		n.note("never mind")
		return
	}
	n.note(fmt.Sprintf("applying +%d -%d", len(d.Upserts), len(d.Removes)))
}

func (n notebook) Applied(context.Context, *proxy.State, *proxy.Delta) { n.note("applied") }

// TestWritesAreAnnounced tells an observer of each write before it begins, and
// takes back what came to nothing.
func TestWritesAreAnnounced(t *testing.T) {
	var book notebook
	run(t, func(s *Settings) {
		book.fakePlane = s.Dataplane.(*fakePlane)
		s.Observers = append(s.Observers, book)
	}, func(l *lab) {
		l.start()
		l.wantCalls("applying +2 -0", "sync 2", "applied")
		for _, c := range []struct {
			name  string
			event func()
			want  []string
		}{
			{"a step", func() { l.change(1) }, []string{"applying +1 -0", "apply +1 -0", "applied"}},
			{"the kernel takes nothing", func() {
				l.plane.faults = []fault{nothing}
				l.change(2)
			}, []string{"applying +1 -0", "apply +1 -0", "applying +1 -0", "apply +1 -0", "applied"}},
			{"the kernel takes half", func() {
				l.plane.faults = []fault{halfWay}
				l.change(3)
			}, []string{"applying +1 -0", "apply +1 -0", "applying +1 -0", "sync 2", "applied"}},
			{"the kernel refuses all", func() {
				l.refuse("web", "busy")
				l.change(4)
			}, []string{"applying +1 -0", "apply +1 -0", "never mind", "applying +1 -0", "apply +1 -0", "never mind"}},
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
