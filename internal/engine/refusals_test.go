package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
)

// listener is an observer that hears of refusals.
type listener struct {
	mu   sync.Mutex
	told []string
}

func (*listener) Applied(context.Context, *proxy.State, *proxy.Delta) {}

func (l *listener) Refused(_ context.Context, changes []Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range changes {
		l.told = append(l.told, c.Key.Name+": "+c.Reason)
	}
}

func (l *listener) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.told, want) {
		t.Errorf("told %q, want %q", l.told, want)
	}
	l.told = nil
}

// TestRefusalsAreTold tells of each change in what is refused, and of nothing
// else: not of a row that is tried again in vain.
func TestRefusalsAreTold(t *testing.T) {
	var heard listener
	run(t, func(s *Settings) { s.Observers = append(s.Observers, &heard) }, func(l *lab) {
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		heard.want(t, "web: set is full")
		time.Sleep(time.Hour / 2)
		heard.want(t)
		l.refuse("web", "still full")
		time.Sleep(retryMax)
		heard.want(t, "web: still full")
		l.accept("web")
		time.Sleep(retryMax)
		heard.want(t, "web: ")

		// One that the kernel never had goes: nothing is left to write.
		l.refuse("new", "set is full")
		l.OnServiceAdd(service("new", 77))
		heard.want(t, "new: set is full")
		l.OnServiceDelete(service("new", 77))
		heard.want(t, "new: ")
	})
}
