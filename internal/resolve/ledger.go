package resolve

import "k8s.io/apimachinery/pkg/types"

// record is what is kept of an object; nil stands for no object.
type record[R any] interface {
	comparable
	equal(R) bool
}

// ledger gathers the changes of one kind of object. It compares with what was
// taken last, so that events that come to nothing (a resync, a change of a
// field we do not read, an addition that is deleted again) are no change.
type ledger[R record[R]] struct {
	known   map[types.NamespacedName]R // as taken last
	pending map[types.NamespacedName]R // as it is now, where that differs
}

func newLedger[R record[R]]() ledger[R] {
	return ledger[R]{known: map[types.NamespacedName]R{}, pending: map[types.NamespacedName]R{}}
}

// note holds what an object is now, and reports whether anything is pending.
func (l *ledger[R]) note(name types.NamespacedName, now R) bool {
	if now.equal(l.known[name]) {
		delete(l.pending, name)
	} else {
		l.pending[name] = now
	}
	return l.isPending()
}

func (l *ledger[R]) isPending() bool { return len(l.pending) > 0 }

// change is what happened to one object.
type change[R any] struct {
	name     types.NamespacedName
	from, to R
}

// take returns what is pending and holds it as known.
func (l *ledger[R]) take() []change[R] {
	if !l.isPending() {
		return nil
	}
	changes := make([]change[R], 0, len(l.pending))
	var none R
	for name, now := range l.pending {
		changes = append(changes, change[R]{name, l.known[name], now})
		if now == none {
			delete(l.known, name)
		} else {
			l.known[name] = now
		}
	}
	// A new map, because clearing one costs what its largest content did.
	l.pending = map[types.NamespacedName]R{}
	return changes
}

// Pending returns how many objects have changes that no Update has taken.
func (l *ledger[R]) Pending() int { return len(l.pending) }
