package engine

import (
	"maps"
	"slices"
	"time"

	"sluice/internal/proxy"
)

// ledger knows how the kernel differs from what is wanted, row by row. The
// resolver believes that every step it gave was taken; the ledger turns its
// steps into steps from what the kernel truly holds.
type ledger struct {
	pending  *proxy.Delta               // to be taken next
	parked   map[proxy.PortKey]change   // refused rows whose time has not come; none of them is in pending
	refusals map[proxy.PortKey]*refusal // of parked rows, and of those in pending that were parked
}

// change is one row's way from what the kernel holds to what is wanted. Nil is
// no row.
type change struct {
	held, want *proxy.ServicePort
}

// refusal is what the kernel has against a row.
type refusal struct {
	reason string
	wait   time.Duration
	due    time.Time // when to try again
}

// news is a change in what the kernel refuses.
type news struct {
	key    proxy.PortKey
	reason string // empty: it is refused no more
	gone   bool   // since nobody wants it any more
}

func newLedger() *ledger {
	return &ledger{
		pending:  &proxy.Delta{},
		parked:   map[proxy.PortKey]change{},
		refusals: map[proxy.PortKey]*refusal{},
	}
}

// add notes a step that was resolved. Parked rows join it when their time has
// come, when the step changes them, or when everything is written anew.
func (l *ledger) add(next *proxy.Delta, all bool, now time.Time) {
	if len(l.parked) > 0 {
		l.unpark(next, all, now)
	}
	if l.pending.Empty() {
		l.pending = next
		return
	}
	l.pending = l.pending.Then(next)
}

func (l *ledger) unpark(next *proxy.Delta, all bool, now time.Time) {
	changed := map[proxy.PortKey]bool{}
	for _, u := range next.Upserts {
		changed[u.New.Key] = true
	}
	for _, r := range next.Removes {
		changed[r.Key] = true
	}
	back := &proxy.Delta{}
	for _, k := range slices.SortedFunc(maps.Keys(l.parked), proxy.ComparePortKeys) {
		r := l.refusals[k]
		if changed[k] {
			r.wait = 0 // The row may have been mended: its waits begin anew.
		}
		if all || changed[k] || !now.Before(r.due) {
			l.parked[k].appendTo(back)
			delete(l.parked, k)
		}
	}
	l.pending = back.Then(l.pending)
}

// appendTo adds the change to a step.
func (c change) appendTo(d *proxy.Delta) {
	if c.want != nil {
		d.Upserts = append(d.Upserts, proxy.Upsert{Old: c.held, New: c.want})
	} else if c.held != nil {
		d.Removes = append(d.Removes, c.held)
	}
}

// applied notes that the pending step was taken, but for the refused rows,
// which are as they were. It returns what changed in the kernel.
func (l *ledger) applied(refused map[proxy.PortKey]error) (*proxy.Delta, []news) {
	told, kept := split(l.pending, refused)
	return told, l.settle(told, kept, refused)
}

// synced notes that the kernel does what the state says, but for the refused
// rows, which are absent. It returns what changed in the kernel.
func (l *ledger) synced(s *proxy.State, refused map[proxy.PortKey]error) (*proxy.Delta, []news) {
	told, kept := split(l.pending, refused)
	for k := range refused {
		want := s.Rows[k]
		if want == nil {
			delete(kept, k) // It should go, and it is gone.
			continue
		}
		held := want // A row without a pending change was in the kernel as wanted.
		if c, ok := kept[k]; ok {
			held = c.held
		}
		if held != nil {
			told.Removes = append(told.Removes, held)
		}
		kept[k] = change{want: want}
	}
	return told, l.settle(told, kept, refused)
}

// split parts a step into what was not refused and, by row, what was.
func split(d *proxy.Delta, refused map[proxy.PortKey]error) (*proxy.Delta, map[proxy.PortKey]change) {
	kept := map[proxy.PortKey]change{}
	if len(refused) == 0 {
		return d, kept
	}
	went := &proxy.Delta{Node: d.Node, CIDRs: d.CIDRs, HealthChecks: d.HealthChecks}
	for _, u := range d.Upserts {
		if refused[u.New.Key] != nil {
			kept[u.New.Key] = change{held: u.Old, want: u.New}
		} else {
			went.Upserts = append(went.Upserts, u)
		}
	}
	for _, r := range d.Removes {
		if refused[r.Key] != nil {
			kept[r.Key] = change{held: r}
		} else {
			went.Removes = append(went.Removes, r)
		}
	}
	return went, kept
}

// settle empties the pending step and parks what is kept of it.
func (l *ledger) settle(told *proxy.Delta, kept map[proxy.PortKey]change, refused map[proxy.PortKey]error) []news {
	l.pending = &proxy.Delta{}
	var out []news
	now := time.Now()
	for k, c := range kept {
		l.parked[k] = c
		r := l.refusals[k]
		if r == nil {
			r = &refusal{}
			l.refusals[k] = r
		}
		if reason := refused[k].Error(); reason != r.reason {
			r.reason = reason
			out = append(out, news{key: k, reason: reason})
		}
		r.wait = min(max(2*r.wait, retryMin), retryMax)
		r.due = now.Add(r.wait)
	}
	if len(l.refusals) == len(l.parked) {
		return out
	}
	for _, u := range told.Upserts {
		if l.refusals[u.New.Key] != nil {
			delete(l.refusals, u.New.Key)
			out = append(out, news{key: u.New.Key})
		}
	}
	maps.DeleteFunc(l.refusals, func(k proxy.PortKey, _ *refusal) bool {
		_, parked := l.parked[k]
		if !parked {
			out = append(out, news{key: k, gone: true})
		}
		return !parked
	})
	return out
}

// nextTry returns when the first parked row is to be tried again.
func (l *ledger) nextTry() (due time.Time, ok bool) {
	for k := range l.parked {
		if d := l.refusals[k].due; !ok || d.Before(due) {
			due, ok = d, true
		}
	}
	return due, ok
}
