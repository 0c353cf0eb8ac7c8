package engine

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/runner"
)

// RowStatus is the status of one service port.
type RowStatus struct {
	Key     proxy.PortKey
	InForce *proxy.ServicePort // the row in the kernel, as far as known; nil if there is none
	Since   time.Time          // when InForce was written
	Pending time.Time          // since when another version is wanted; zero if InForce is the wanted one
	Refused string             // why the kernel refused the wanted version; empty if it did not
	NextTry time.Time          // when a refused row is retried; zero means with the next sync

	wait    time.Duration // the back-off before NextTry
	partial bool          // the kernel has parts of the refused version
}

// table has the status of every row. A row that is not dirty is in force as wanted,
// so no second copy of all rows is kept.
type table struct {
	want  *proxy.State // the resolver's state
	dirty map[proxy.PortKey]*RowStatus
	since map[*proxy.ServicePort]time.Time // when the rows in force were written

	changes changes // the last changes in the kernel

	leftovers RowStatus // of objects that belong to no row and that the kernel refuses to remove; zero if there are none

	dirtyChecks map[proxy.HealthCheckKey]*proxy.HealthCheck // the versions in force
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

// markChanged makes everything dirty that a resolved step changes.
func (t *table) markChanged(d *proxy.Delta, now time.Time) {
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

// mark makes a row dirty; inForce is its version in the kernel if it was not dirty.
// The kernel may accept the new version of a refused row, so the row is retried with
// the next sync, and its back-off starts again.
func (t *table) mark(k proxy.PortKey, inForce *proxy.ServicePort, now time.Time) *RowStatus {
	r := t.dirty[k]
	if r == nil {
		r = &RowStatus{Key: k, InForce: inForce, Since: t.since[inForce], Pending: now}
		t.dirty[k] = r
	}
	r.wait, r.NextTry = 0, time.Time{}
	return r
}

// due returns what has to be written now: everything dirty, except for refused rows
// whose back-off has not ended; with all, including those. The step has the same
// changes as the difference between what is in force and what is wanted.
func (t *table) due(all bool, now time.Time) (*proxy.Changed, *proxy.Delta) {
	c := &proxy.Changed{Node: t.dirtyNode, CIDRs: t.dirtyCIDRs}
	for k, r := range t.dirty {
		if all || !now.Before(r.NextTry) {
			c.Rows = append(c.Rows, k)
		}
	}
	slices.SortFunc(c.Rows, proxy.ComparePortKeys)
	c.Leftovers = t.leftovers.Refused != "" && (all || !now.Before(t.leftovers.NextTry))
	step := t.step(c.Rows)
	for _, h := range step.HealthChecks {
		if h.ChangesPort() {
			c.HealthChecks = append(c.HealthChecks, h.Key())
		}
	}
	return c, step
}

// step returns the difference between what is in force and what is wanted, for some
// of the dirty rows and for everything else that is dirty.
func (t *table) step(rows []proxy.PortKey) *proxy.Delta {
	d := &proxy.Delta{}
	for _, k := range rows {
		switch old, row := t.dirty[k].InForce, t.want.Rows[k]; {
		case row == old:
		case row != nil:
			d.Upserts = append(d.Upserts, proxy.Upsert{Old: old, New: row})
		default:
			d.Removes = append(d.Removes, old)
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

// recordSync records that the work is in force, except for the refused rows. It
// returns what changed in the kernel, and the rows that it began or ceased to refuse
// or refuses for another reason; with the zero key, objects that belong to no row.
func (t *table) recordSync(w *work, refused proxy.Refused, now time.Time) (*proxy.Delta, []RowStatus) {
	changes := t.recordLeftovers(w, refused[proxy.PortKey{}], now)
	maps.DeleteFunc(refused, func(k proxy.PortKey, _ error) bool {
		// A row that is not wanted does not exist after Sync, and Apply was not
		// asked for it unless it is dirty. The zero key is no row.
		return t.want.Rows[k] == nil && (w.full || t.dirty[k] == nil)
	})
	done := w.step
	if len(refused) > 0 {
		done = t.step(slices.DeleteFunc(slices.Clone(w.changed.Rows), func(k proxy.PortKey) bool { return refused[k] != nil }))
	}
	for _, k := range slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys) {
		err, r := refused[k], t.dirty[k]
		if r == nil {
			r = t.mark(k, t.want.Rows[k], now)
		}
		if w.full && r.InForce != nil && !w.kept[k] {
			done.Removes = append(done.Removes, r.InForce)
			r.InForce, r.Since = nil, time.Time{}
		}
		if r.refuse(err, now) {
			changes = append(changes, *r)
		}
	}
	t.changes.record(done, now, t.dirty)
	for _, k := range w.changed.Rows {
		if refused[k] != nil {
			continue
		}
		if t.dirty[k].Refused != "" {
			changes = append(changes, RowStatus{Key: k})
		}
		delete(t.dirty, k)
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

// recordLeftovers records whether the kernel refuses to remove objects that belong to no
// row. It returns the status if the reason changed.
func (t *table) recordLeftovers(w *work, err error, now time.Time) []RowStatus {
	was := t.leftovers
	switch {
	case err == nil && !w.full && !w.changed.Leftovers:
		return nil // it was not tried
	case err == nil:
		t.leftovers = RowStatus{}
	default:
		t.leftovers.Pending = cmp.Or(was.Pending, now)
		t.leftovers.refuse(err, now)
	}
	if t.leftovers.Refused == was.Refused {
		return nil
	}
	return []RowStatus{t.leftovers}
}

// refuse records that a row was refused. It reports whether the reason is another one than
// before.
func (r *RowStatus) refuse(err error, now time.Time) bool {
	was := r.Refused
	r.Refused = err.Error()
	_, r.partial = errors.AsType[*proxy.PartialError](err)
	r.wait = runner.Backoff(r.wait, retryMin, retryMax)
	r.NextTry = now.Add(r.wait)
	return r.Refused != was
}

func compareRows(a, b RowStatus) int { return proxy.ComparePortKeys(a.Key, b.Key) }
