package engine

import (
	"iter"
	"maps"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// View is all that an engine knows. It is valid while Look lasts, and to be read
// only; rows may be kept, as they never change.
type View struct {
	Resolver *resolve.Resolver
	State    *proxy.State // what is wanted, as of the last sync that began
	Sync     SyncStatus   // how the last one went
	table    *table
}

// SyncStatus is how the last sync went.
type SyncStatus struct {
	First   bool          // one has gone through
	Ended   time.Time     // when the last one did that went through; zero: none did
	Took    time.Duration // how long that took
	Err     error         // why the last one failed; nil: it did not
	Waiting string        // what the first sync waits for; empty: for nothing
}

// Look calls f with what is known now. Events and syncs wait for it meanwhile,
// so f looks at little at a time.
func (e *Engine) Look(f func(View)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.last
	if !s.First {
		s.Waiting = e.missing()
	}
	f(View{e.resolver, e.resolver.State(), s, e.table})
}

// missing names what the first sync waits for.
func (e *Engine) missing() string {
	switch {
	case !e.heard.services:
		return "Services have not come yet"
	case !e.heard.slices:
		return "EndpointSlices have not come yet"
	case !e.heard.node:
		return "the Node has not come yet"
	default:
		return ""
	}
}

// Row returns how a row stands. One that is neither wanted nor in force has a
// status with nothing but the key.
func (v View) Row(k proxy.PortKey) RowStatus {
	if r := v.table.dirty[k]; r != nil {
		return *r
	}
	row := v.State.Rows[k]
	return RowStatus{Key: k, InForce: row, Since: v.table.since[row]}
}

// NotAsWanted yields how the rows stand that are not as wanted, in no order.
func (v View) NotAsWanted() iter.Seq[*RowStatus] { return maps.Values(v.table.dirty) }

// Dirty returns how many rows are not as wanted: those that the kernel refuses,
// and the others.
func (v View) Dirty() (pending, refused int) {
	for _, r := range v.table.dirty {
		if r.Refused != "" {
			refused++
		}
	}
	return len(v.table.dirty) - refused, refused
}
