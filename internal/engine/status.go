package engine

import (
	"iter"
	"maps"
	"slices"
	"time"

	"sluice/internal/proxy"
)

// RowStatus is how one service port stands.
type RowStatus struct {
	Key     proxy.PortKey
	InForce *proxy.ServicePort // what the kernel does, as far as known; nil: nothing
	Since   time.Time          // when that came in force
	Pending time.Time          // since when something else is wanted; zero: it is as wanted
	Refused string             // why the kernel does not take that; empty: it was not refused
	NextTry time.Time          // when a refused row is tried again
}

// table knows how the kernel differs from what is wanted. A row that is not
// dirty is in force as wanted, so that it costs no second copy of all rows.
type table struct {
	want  *proxy.State // the resolver's
	dirty map[proxy.PortKey]*dirtyRow
	since map[*proxy.ServicePort]time.Time // when the rows in force came

	dirtyChecks map[proxy.HealthCheckKey]*proxy.HealthCheck // as in force
	dirtyNode   bool
	dirtyCIDRs  bool
}

// dirtyRow is a row that the kernel may not have as it is wanted.
type dirtyRow struct {
	held   *proxy.ServicePort // in force; nil: no row is
	since  time.Time
	reason string        // why it was refused; empty: it was not
	wait   time.Duration // from the last refusal to the next try
	due    time.Time     // the next try; zero: the next sync
}

// refusal is a change in what the kernel refuses.
type refusal struct {
	key    proxy.PortKey
	reason string // empty: it is accepted now
	gone   bool   // nobody wants it any more
}

func newTable(want *proxy.State) *table {
	return &table{
		want:        want,
		dirty:       map[proxy.PortKey]*dirtyRow{},
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

// mark notes that a row changed. If it was refused it may be right now: it is
// tried at once, and its waits begin anew.
func (t *table) mark(k proxy.PortKey, held *proxy.ServicePort, now time.Time) *dirtyRow {
	r := t.dirty[k]
	if r == nil {
		r = &dirtyRow{held: held, since: now}
		t.dirty[k] = r
	}
	r.wait, r.due = 0, time.Time{}
	return r
}

// due returns what is to be written now: all that is dirty, without the refused
// rows whose time has not come unless everything is written anew.
func (t *table) due(all bool, now time.Time) *proxy.Changed {
	c := &proxy.Changed{Node: t.dirtyNode, CIDRs: t.dirtyCIDRs}
	for k, r := range t.dirty {
		if all || !now.Before(r.due) {
			c.Rows = append(c.Rows, k)
		}
	}
	slices.SortFunc(c.Rows, proxy.ComparePortKeys)
	c.HealthChecks = slices.SortedFunc(maps.Keys(t.dirtyChecks), proxy.CompareHealthCheckKeys)
	return c
}

// step returns the way from what is in force to what is wanted.
func (t *table) step(c *proxy.Changed) *proxy.Delta {
	return c.Delta(t.want, t.held, func(k proxy.HealthCheckKey) *proxy.HealthCheck { return t.dirtyChecks[k] })
}

// held returns the row that is in force; nil: none is.
func (t *table) held(k proxy.PortKey) *proxy.ServicePort {
	if r := t.dirty[k]; r != nil {
		return r.held
	}
	return t.want.Rows[k]
}

// settle notes that the work was done, but for the refused rows. It returns
// what changed in the kernel, and in what it refuses.
func (t *table) settle(w *work, refused proxy.Refused, now time.Time) (*proxy.Delta, []refusal) {
	done := w.step
	if w.full {
		maps.DeleteFunc(refused, func(k proxy.PortKey, _ error) bool { return t.want.Rows[k] == nil }) // as it should be
	}
	if len(refused) > 0 {
		accepted := *w.changed
		accepted.Rows = slices.DeleteFunc(slices.Clone(accepted.Rows), func(k proxy.PortKey) bool { return refused[k] != nil })
		done = t.step(&accepted)
	}
	var news []refusal
	for _, k := range w.changed.Rows {
		if refused[k] != nil {
			continue
		}
		if t.dirty[k].reason != "" {
			news = append(news, refusal{key: k, gone: t.want.Rows[k] == nil})
		}
		delete(t.dirty, k)
	}
	clear(t.dirtyChecks)
	t.dirtyNode, t.dirtyCIDRs = false, false
	for k, why := range refused {
		r := t.dirty[k]
		if r == nil {
			if t.want.Rows[k] == nil {
				continue // nobody asked for it
			}
			r = t.mark(k, t.want.Rows[k], now)
		}
		if w.full && r.held != nil {
			done.Removes = append(done.Removes, r.held)
			r.held = nil
		}
		if reason := why.Error(); reason != r.reason {
			r.reason = reason
			news = append(news, refusal{key: k, reason: reason})
		}
		r.wait = min(max(2*r.wait, retryMin), retryMax)
		r.due = now.Add(r.wait)
	}
	t.date(done, now)
	slices.SortFunc(news, func(a, b refusal) int { return proxy.ComparePortKeys(a.key, b.key) })
	return done, news
}

// date notes when rows came in force.
func (t *table) date(d *proxy.Delta, now time.Time) {
	for _, r := range d.Removes {
		delete(t.since, r)
	}
	for _, u := range d.Upserts {
		delete(t.since, u.Old)
		t.since[u.New] = now
	}
}

// nextTry returns the next time after now when a refused row is to be tried again.
func (t *table) nextTry(now time.Time) (due time.Time, ok bool) {
	for _, r := range t.dirty {
		if r.due.After(now) && (!ok || r.due.Before(due)) {
			due, ok = r.due, true
		}
	}
	return due, ok
}

// row returns how a row stands.
func (t *table) row(k proxy.PortKey) RowStatus {
	s := RowStatus{Key: k, InForce: t.held(k)}
	s.Since = t.since[s.InForce]
	if r := t.dirty[k]; r != nil {
		s.Pending, s.Refused, s.NextTry = r.since, r.reason, r.due
	}
	return s
}

// refused returns the rows that the kernel refuses, in no order.
func (t *table) refused() iter.Seq[RowStatus] {
	return func(yield func(RowStatus) bool) {
		for k, r := range t.dirty {
			if r.reason != "" && !yield(t.row(k)) {
				return
			}
		}
	}
}
