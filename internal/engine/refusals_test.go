package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// complaints is an observer that asks what is refused when that changed.
type complaints struct {
	nobody
	engine *Engine
	heard  []string
}

func (c *complaints) Done(_ context.Context, r Result) {
	if !r.Refusals {
		return
	}
	all := "refused:"
	for _, row := range c.engine.Refused() {
		all += " " + row.Key.Name + ": " + row.Refused
	}
	c.heard = append(c.heard, all)
}

func (c *complaints) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(c.heard, want) {
		t.Errorf("told %q, want %q", c.heard, want)
	}
	c.heard = nil
}

// TestRefusalsAreTold tells of each change in what is refused, and of nothing
// else: not of a row that is tried again in vain.
func TestRefusalsAreTold(t *testing.T) {
	var heard complaints
	run(t, func(s *Settings) { s.Observer = &heard }, func(l *lab) {
		heard.engine = l.Engine
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		heard.want(t, "refused: web: set is full")
		time.Sleep(time.Hour / 2)
		heard.want(t)
		l.refuse("web", "still full")
		time.Sleep(retryMax)
		heard.want(t, "refused: web: still full")
		l.accept("web")
		time.Sleep(retryMax)
		heard.want(t, "refused:")

		// One that the kernel never had goes: nothing is left to write.
		l.refuse("new", "set is full")
		l.OnServiceAdd(service("new", 77))
		heard.want(t, "refused: new: set is full")
		l.OnServiceDelete(service("new", 77))
		heard.want(t, "refused:")
	})
}
