package metrics

import (
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Watchdog measures syncs, and how long changes wait for one. Its methods may
// be called by any goroutine.
//
// EndpointSliceSeen, ServiceSeen and Began must be called in the order in which
// the resolver sees the events and their consumption, that is under the lock
// that guards the resolver. Otherwise a change could be counted with a sync that
// it was too late for.
type Watchdog struct {
	metrics *Metrics

	mu       sync.Mutex
	triggers triggers
	slices   waiting
	services waiting
	began    time.Time
}

// waiting counts objects whose changes are not in force.
type waiting struct {
	pending int // no sync has begun since they came
	taken   int // the sync under way puts them in force, or a later one
}

// NewWatchdog returns a watchdog of a process that starts now.
func NewWatchdog(m *Metrics) *Watchdog {
	return &Watchdog{metrics: m, triggers: triggers{start: time.Now()}}
}

// EndpointSliceSeen takes an event: old is nil for an addition, cur for a
// deletion. Pending is how many slices now have changes that no sync has begun
// to put in force; if none has, the event came to nothing.
func (w *Watchdog) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	w.metrics.EndpointSliceSeen()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slices.pending = pending
	if pending > 0 {
		w.triggers.note(old, cur)
	}
	w.metrics.EndpointSlicesPending(w.slices.total())
}

// ServiceSeen takes an event of a Service, with how many Services now have
// changes that no sync has begun to put in force.
func (w *Watchdog) ServiceSeen(pending int) {
	w.metrics.ServiceSeen()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.services.pending = pending
	w.metrics.ServicesPending(w.services.total())
}

// Queued says that a sync was asked for.
func (w *Watchdog) Queued() {
	for _, f := range w.metrics.families {
		w.metrics.SyncQueued(f)
	}
}

// Began says that a sync begins that includes every event seen before.
func (w *Watchdog) Began() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
	w.triggers.take()
	w.slices.take()
	w.services.take()
}

// Done says that the sync that began last has ended.
func (w *Watchdog) Done(full bool, err error) {
	kind := Partial
	if full {
		kind = Full
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.metrics.families {
		w.metrics.SyncDone(f, kind, time.Since(w.began), err == nil)
	}
	if err != nil {
		return
	}
	w.triggers.done(w.metrics)
	w.slices.taken, w.services.taken = 0, 0
	w.metrics.EndpointSlicesPending(w.slices.total())
	w.metrics.ServicesPending(w.services.total())
}

func (w *waiting) total() int { return w.pending + w.taken }

func (w *waiting) take() {
	w.taken += w.pending
	w.pending = 0
}
