package resolve

import "k8s.io/apimachinery/pkg/types"

// record is what is kept of an object; nil stands for no object.
type record[R any] interface {
	comparable
	equal(R) bool
}

// pendingRecords gathers the changes of one kind of object. It compares with
// what was taken last, so that events that come to nothing (a resync, a change
// of a field we do not read, an addition that is deleted again) are no change.
type pendingRecords[R record[R]] struct {
	known   map[types.NamespacedName]R // as taken last
	pending map[types.NamespacedName]R // as it is now, where that differs
}

func newPendingRecords[R record[R]]() pendingRecords[R] {
	return pendingRecords[R]{known: map[types.NamespacedName]R{}, pending: map[types.NamespacedName]R{}}
}

// set holds what an object is now, and reports whether anything is pending.
func (p *pendingRecords[R]) set(name types.NamespacedName, now R) bool {
	if now.equal(p.known[name]) {
		delete(p.pending, name)
	} else {
		p.pending[name] = now
	}
	return len(p.pending) > 0
}

// Pending returns how many objects have changes that no Update has taken.
func (p *pendingRecords[R]) Pending() int { return len(p.pending) }

// recordChange is what happened to one object.
type recordChange[R any] struct {
	name     types.NamespacedName
	from, to R
}

// take returns what is pending and holds it as known.
func (p *pendingRecords[R]) take() []recordChange[R] {
	if len(p.pending) == 0 {
		return nil
	}
	changes := make([]recordChange[R], 0, len(p.pending))
	var none R
	for name, now := range p.pending {
		changes = append(changes, recordChange[R]{name, p.known[name], now})
		if now == none {
			delete(p.known, name)
		} else {
			p.known[name] = now
		}
	}
	// A new map, because clearing one costs what its largest content did.
	p.pending = map[types.NamespacedName]R{}
	return changes
}
