package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// refusalRecorder is an observer that records the refused rows whenever they change.
type refusalRecorder struct {
	nobody
	engine  *Engine
	reports []string
}

func (c *refusalRecorder) Done(_ context.Context, r Result) {
	if !r.Refusals {
		return
	}
	all := "refused:"
	for _, row := range c.engine.Refused() {
		all += " " + row.Key.Name + ": " + row.Refused
	}
	c.reports = append(c.reports, all)
}

func (c *refusalRecorder) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(c.reports, want) {
		t.Errorf("reported %q, want %q", c.reports, want)
	}
	c.reports = nil
}

// TestRefusalsAreReported checks that the observer is notified of each change of the
// refused rows, and of nothing else, such as a retry that is refused again.
func TestRefusalsAreReported(t *testing.T) {
	var recorder refusalRecorder
	run(t, func(s *Settings) { s.Observer = &recorder }, func(l *lab) {
		recorder.engine = l.Engine
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		recorder.want(t, "refused: web: set is full")
		time.Sleep(time.Hour / 2)
		recorder.want(t)
		l.refuse("web", "still full")
		time.Sleep(retryMax)
		recorder.want(t, "refused: web: still full")
		l.accept("web")
		time.Sleep(retryMax)
		recorder.want(t, "refused:")

		// A row is removed that the kernel never had: nothing is left to write.
		l.refuse("new", "set is full")
		l.OnServiceAdd(service("new", 77))
		recorder.want(t, "refused: new: set is full")
		l.OnServiceDelete(service("new", 77))
		recorder.want(t, "refused:")
	})
}
