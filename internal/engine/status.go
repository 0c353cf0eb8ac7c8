package engine

import (
	"maps"
	"slices"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/runner"
)

// RowStatus is how one service port stands.
type RowStatus struct {
	Key     proxy.PortKey
	InForce *proxy.ServicePort // what the kernel does, as far as known; nil: nothing
	Since   time.Time          // when that came in force
	Pending time.Time          // since when something else is wanted; zero: it is as wanted
	Refused string             // why the kernel does not take that; empty: it was not refused
	NextTry time.Time          // when a refused row is tried again; zero: with the next sync

	wait time.Duration // from the last refusal to the next try
}

// table knows how every row stands. One that is not dirty is in force as it is
// wanted, so there is no second copy of all rows.
type table struct {
	want  *proxy.State // the resolver's
	dirty map[proxy.PortKey]*RowStatus
	since map[*proxy.ServicePort]time.Time // when the rows in force came

	changes changes // what came in force

	dirtyChecks map[proxy.HealthCheckKey]*proxy.HealthCheck // as in force
	dirtyNode   bool
	dirtyCIDRs  bool
}

func newTable(want *proxy.State) *table {
	return &table{
		want:        want,
		dirty:       map[proxy.PortKey]*RowStatus{},
		since:       map[*proxy.ServicePort]time.Time{},
		dirtyChecks: map[proxy.HealthCheckKey]*proxy.HealthCheck{},
	}
}

// changed notes a step that was resolved.
func (t *table) changed(d *proxy.Delta, now time.Time) {
	for _, r := range d.Removes {
		t.mark(r.Key, r, now)
	}
	for _, u := range d.Upserts {
		t.mark(u.New.Key, u.Old, now)
	}
	for _, c := range d.HealthChecks {
		if _, dirty := t.dirtyChecks[c.Key()]; !dirty {
			t.dirtyChecks[c.Key()] = c.Old
		}
	}
	t.dirtyNode = t.dirtyNode || d.Node != nil
	t.dirtyCIDRs = t.dirtyCIDRs || d.CIDRs != nil
}

// mark makes a row dirty; if it was not, it is in force as held. One that was
// refused may be right now: it is tried at once, and its waits begin anew.
func (t *table) mark(k proxy.PortKey, held *proxy.ServicePort, now time.Time) *RowStatus {
	r := t.dirty[k]
	if r == nil {
		r = &RowStatus{Key: k, InForce: held, Since: t.since[held], Pending: now}
		t.dirty[k] = r
	}
	r.wait, r.NextTry = 0, time.Time{}
	return r
}

// due returns what is to be written now: all that is dirty, without the refused
// rows whose time has not come unless everything is written anew. The step is
// the same, as the way from what is in force to what is wanted.
func (t *table) due(all bool, now time.Time) (*proxy.Changed, *proxy.Delta) {
	c := &proxy.Changed{Node: t.dirtyNode, CIDRs: t.dirtyCIDRs}
	for k, r := range t.dirty {
		if all || !now.Before(r.NextTry) {
			c.Rows = append(c.Rows, k)
		}
	}
	slices.SortFunc(c.Rows, proxy.ComparePortKeys)
	step := t.step(c.Rows)
	for _, h := range step.HealthChecks {
		if h.Moves() {
			c.HealthChecks = append(c.HealthChecks, h.Key())
		}
	}
	return c, step
}

// step returns the way from what is in force to what is wanted: of some dirty
// rows, and of all the rest.
func (t *table) step(rows []proxy.PortKey) *proxy.Delta {
	d := &proxy.Delta{}
	for _, k := range rows {
		switch held, row := t.dirty[k].InForce, t.want.Rows[k]; {
		case row == held:
		case row != nil:
			d.Upserts = append(d.Upserts, proxy.Upsert{Old: held, New: row})
		default:
			d.Removes = append(d.Removes, held)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(t.dirtyChecks), proxy.CompareHealthCheckKeys) {
		if h := (proxy.HealthCheckChange{Old: t.dirtyChecks[k], New: t.want.HealthChecks[k]}); h.Old != h.New {
			d.HealthChecks = append(d.HealthChecks, h)
		}
	}
	if t.dirtyNode {
		d.Node = t.want.Node
	}
	if t.dirtyCIDRs {
		d.CIDRs = new(t.want.CIDRs)
	}
	return d
}

// settle notes that the work was done, but for the refused rows. It returns
// what changed in the kernel, and the rows that it began or ceased to refuse.
func (t *table) settle(w *work, refused proxy.Refused, now time.Time) (*proxy.Delta, []RowStatus) {
	maps.DeleteFunc(refused, func(k proxy.PortKey, _ error) bool {
		// A row that is not wanted is gone after a Sync, and else nobody asked for it.
		return t.want.Rows[k] == nil && (w.full || t.dirty[k] == nil)
	})
	done := w.step
	if len(refused) > 0 {
		done = t.step(slices.DeleteFunc(slices.Clone(w.changed.Rows), func(k proxy.PortKey) bool { return refused[k] != nil }))
	}
	t.changes.note(done, now, t.dirty)
	var changes []RowStatus
	for _, k := range w.changed.Rows {
		if refused[k] != nil {
			continue
		}
		if t.dirty[k].Refused != "" {
			changes = append(changes, RowStatus{Key: k})
		}
		delete(t.dirty, k)
	}
	for k, why := range refused {
		r := t.dirty[k]
		if r == nil {
			r = t.mark(k, t.want.Rows[k], now)
		}
		if w.full && r.InForce != nil {
			done.Removes = append(done.Removes, r.InForce)
			r.InForce, r.Since = nil, time.Time{}
		}
		if reason := why.Error(); reason != r.Refused {
			r.Refused = reason
			changes = append(changes, *r)
		}
		r.wait = runner.Backoff(r.wait, retryMin, retryMax)
		r.NextTry = now.Add(r.wait)
	}
	clear(t.dirtyChecks)
	t.dirtyNode, t.dirtyCIDRs = false, false
	for _, r := range done.Removes {
		delete(t.since, r)
	}
	for _, u := range done.Upserts {
		delete(t.since, u.Old)
		t.since[u.New] = now
	}
	slices.SortFunc(changes, compareRows)
	return done, changes
}

func compareRows(a, b RowStatus) int { return proxy.ComparePortKeys(a.Key, b.Key) }
