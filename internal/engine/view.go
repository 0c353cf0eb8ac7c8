package engine

import (
	"iter"
	"maps"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// View gives read access to everything an engine knows. It is valid until the
// function returns that Look calls; rows may be kept, since they never change.
type View struct {
	Resolver *resolve.Resolver
	State    *proxy.State // the wanted state, as of the start of the last sync
	Sync     SyncStatus
	table    *table
	engine   *Engine
}

// SyncStatus is the result of the last syncs.
type SyncStatus struct {
	First   bool          // the first successful sync has ended
	Ended   time.Time     // when the last successful sync ended; zero if there was none
	Took    time.Duration // how long it took
	Err     error         // why the last sync failed; nil if it succeeded
	Waiting string        // what the first sync waits for; empty if it does not wait
}

// Look calls f with the current state. It holds the engine's lock, so events and
// syncs wait until f returns: f must read only a limited part at a time.
func (e *Engine) Look(f func(View)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.last
	if !s.First {
		s.Waiting = e.missing()
	}
	f(View{e.resolver, e.resolver.State(), s, e.table, e})
}

// missing returns what the first sync waits for.
func (e *Engine) missing() string {
	switch {
	case !e.synced.services:
		return "Services are not known yet"
	case !e.synced.slices:
		return "EndpointSlices are not known yet"
	case !e.synced.node:
		return "the Node is not known yet"
	default:
		return ""
	}
}

// Row returns the status of a row. For a row that is neither wanted nor in force,
// only the key is set.
func (v View) Row(k proxy.PortKey) RowStatus {
	if r := v.table.dirty[k]; r != nil {
		return *r
	}
	row := v.State.Rows[k]
	return RowStatus{Key: k, InForce: row, Since: v.table.since[row]}
}

// DirtyRows yields the status of the rows that are not known to be as wanted, in no
// particular order.
func (v View) DirtyRows() iter.Seq[*RowStatus] { return maps.Values(v.table.dirty) }

// DirtyCounts returns how many dirty rows only wait to be written, and how many the
// kernel refuses.
func (v View) DirtyCounts() (pending, refused int) {
	for _, r := range v.table.dirty {
		if r.Refused != "" {
			refused++
		}
	}
	return len(v.table.dirty) - refused, refused
}
