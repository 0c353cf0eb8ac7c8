package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Doubt is a reason not to trust that Services work as their objects say.
type Doubt struct {
	Kind   DoubtKind
	Object string    // what it is about; empty: the node
	Reason string    // what is wrong, in a sentence without a full stop
	Next   string    // what the daemon does next, or what to do
	Since  time.Time // since when
	NextAt time.Time // when it does that; zero if no time is set
}

// DoubtKind is a machine-readable word for a doubt. Kinds never change: alerts and
// scripts may depend on them.
type DoubtKind string

const (
	NotSynced             DoubtKind = "NotSynced"             // no sync has succeeded since the start
	SyncFailing           DoubtKind = "SyncFailing"           // the last sync failed
	RulesChanged          DoubtKind = "RulesChanged"          // another process may have changed our rules, and they are not repaired yet
	ServicePortsRefused   DoubtKind = "ServicePortsRefused"   // the kernel refuses service ports
	SourceSilent          DoubtKind = "SourceSilent"          // changes of Services or EndpointSlices are not known
	LeftoverRules         DoubtKind = "LeftoverRules"         // what an earlier mode or service proxy left cannot be removed
	FirewallDrops         DoubtKind = "FirewallDrops"         // the host's rules drop traffic of Services, which only another mode can prevent
	SourceIncomplete      DoubtKind = "SourceIncomplete"      // changes of other objects are not known
	FirewallMayDrop       DoubtKind = "FirewallMayDrop"       // the same, unless other rules of the host accept all of it
	ConfigurationRejected DoubtKind = "ConfigurationRejected" // the new configuration cannot be used
	ConntrackFull         DoubtKind = "ConntrackFull"         // the kernel drops new connections
	ConntrackNearlyFull   DoubtKind = "ConntrackNearlyFull"   // it soon may
	NodeUnknown           DoubtKind = "NodeUnknown"           // there are Nodes, and none has this node's name
	RulesUnwatched        DoubtKind = "RulesUnwatched"        // changes by other processes may go unnoticed
)

// DoubtKinds has all kinds, in the order in which doubts are listed: severe ones first.
var DoubtKinds = [...]DoubtKind{
	NotSynced, SyncFailing, RulesChanged, ServicePortsRefused, SourceSilent, ConntrackFull,
	LeftoverRules, FirewallDrops, SourceIncomplete, ConntrackNearlyFull, FirewallMayDrop,
	ConfigurationRejected, NodeUnknown, RulesUnwatched,
}

// Severe reports whether the kernel may not do what the objects say, so that nobody
// may take everything to be in force. Other doubts are warnings.
func (k DoubtKind) Severe() bool {
	switch k {
	case NotSynced, SyncFailing, RulesChanged, ServicePortsRefused, SourceSilent, ConntrackFull, LeftoverRules, FirewallDrops:
		return true
	default:
		return false
	}
}

// doubtsOfKind bounds how many doubts of a kind are kept. Their number may depend on
// objects that others write, and the first of them say enough.
const doubtsOfKind = 16

// Doubts is the list that every part of the daemon adds its doubts to, except those
// that the engine derives from its own state. The zero value is empty. It is safe for
// concurrent use, and holds no other lock.
type Doubts struct {
	mu  sync.Mutex
	all []Doubt
}

// Set adds a doubt, or replaces the one of the same kind about the same object. Since
// is kept if there is one already; otherwise a zero Since means now.
func (d *Doubts) Set(n Doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.Since.IsZero() {
		n.Since = time.Now()
	}
	ofKind := 0
	for i := range d.all {
		have := &d.all[i]
		if have.Kind != n.Kind {
			continue
		}
		if have.Object == n.Object {
			n.Since = have.Since
			*have = n
			return
		}
		ofKind++
	}
	if ofKind < doubtsOfKind {
		d.all = append(d.all, n)
	}
}

// Clear removes the doubt of a kind about an object, if there is one.
func (d *Doubts) Clear(kind DoubtKind, object string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = slices.DeleteFunc(d.all, func(have Doubt) bool { return have.Kind == kind && have.Object == object })
}

// All returns the doubts in the order of DoubtKinds, then by object. The caller may
// change the slice.
func (d *Doubts) All() []Doubt {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.all)
	sortDoubts(all)
	return all
}

func sortDoubts(all []Doubt) {
	slices.SortFunc(all, func(a, b Doubt) int {
		return cmp.Or(cmp.Compare(slices.Index(DoubtKinds[:], a.Kind), slices.Index(DoubtKinds[:], b.Kind)), cmp.Compare(a.Object, b.Object))
	})
}

// Doubts returns all doubts of the daemon, sorted as [Doubts.All] does: those that
// follow from the engine's state, and those in the list of its settings.
func (v View) Doubts() []Doubt {
	all := v.engine.doubts.All()
	for _, derived := range []func() Doubt{v.notSynced, v.syncFailing, v.rulesChanged, v.table.refused} {
		if d := derived(); d.Kind != "" {
			all = append(all, d)
		}
	}
	sortDoubts(all)
	return all
}

// Doubts returns all doubts of the daemon, as [View.Doubts] does.
func (e *Engine) Doubts() (all []Doubt) {
	e.Look(func(v View) { all = v.Doubts() })
	return all
}

// notSynced returns the doubt that follows from the lack of a first sync.
func (v View) notSynced() Doubt {
	if v.Sync.First {
		return Doubt{}
	}
	return Doubt{
		Kind: NotSynced, Since: v.engine.created,
		Reason: cmp.Or(v.Sync.Waiting, "the first sync has not succeeded yet") + ", and rules of an earlier run, if there are any, stay in force",
		Next:   "the first sync begins once all objects are known",
	}
}

// failure is a series of syncs that failed.
type failure struct{ since, retry time.Time }

// syncFailing returns the doubt that follows from a failed sync.
func (v View) syncFailing() Doubt {
	f := v.engine.failing
	if f.since.IsZero() || v.Sync.Err == nil {
		return Doubt{}
	}
	return Doubt{Kind: SyncFailing, Since: f.since, Reason: v.Sync.Err.Error(), Next: "the sync is retried", NextAt: f.retry}
}

// rulesChanged returns the doubt that follows from changes by other processes.
func (v View) rulesChanged() Doubt {
	d := v.engine.damage
	if d.since.IsZero() {
		return Doubt{}
	}
	return Doubt{
		Kind: RulesChanged, Since: d.since, Reason: "another process changed our rules: " + d.seen,
		Next: "they are compared and repaired", NextAt: v.engine.fullDue,
	}
}

// refused returns the doubt that follows from refused rows, one for all of them.
func (t *table) refused() (d Doubt) {
	var first *RowStatus
	n := 0
	for _, r := range t.dirty {
		if r.Refused == "" {
			continue
		}
		if n++; first == nil || compareRows(*r, *first) < 0 {
			first = r
		}
		if d.Since.IsZero() || r.Pending.Before(d.Since) {
			d.Since = r.Pending
		}
		if d.NextAt.IsZero() || r.NextTry.Before(d.NextAt) {
			d.NextAt = r.NextTry
		}
	}
	switch n {
	case 0:
		return Doubt{}
	case 1:
		d.Reason = fmt.Sprintf("the kernel refuses %v: %s", first.Key, first.Refused)
	default:
		d.Reason = fmt.Sprintf("the kernel refuses %d service ports, the first is %v: %s", n, first.Key, first.Refused)
	}
	d.Kind, d.Next = ServicePortsRefused, "the kernel is asked again"
	return d
}
