package resolve

import (
	"cmp"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
)

// ServiceChangeTracker gathers changes of Services until [Resolver.Update]
// takes them: all changes of one Service become one, and none if it is as
// Update last saw it.
type ServiceChangeTracker struct {
	tracker[*service]
	ignoreExternalIPs bool
	allowed           apiobject.Allowed
	balancing         Balancing
}

// Update notes an event: previous is nil for an addition, current for a
// deletion. It reports whether any Service's change is pending. Neither object
// is kept.
func (t *ServiceChangeTracker) Update(previous, current *v1.Service) bool {
	if obj := cmp.Or(current, previous); obj != nil {
		name := nameOf(&obj.ObjectMeta)
		t.set(name, t.read(name, current))
	}
	return t.Pending() > 0
}

// EndpointsChangeTracker gathers changes of EndpointSlices until
// [Resolver.Update] takes them, as [ServiceChangeTracker] does for Services.
type EndpointsChangeTracker struct {
	tracker[*endpointSlice]
	nodeName  string
	balancing Balancing
}

// Update notes that a slice was added or changed, or with remove that it is
// gone. It reports whether any slice's change is pending. The object is not
// kept.
func (t *EndpointsChangeTracker) Update(slice *discoveryv1.EndpointSlice, remove bool) bool {
	if slice != nil {
		name := nameOf(&slice.ObjectMeta)
		var now *endpointSlice
		if !remove {
			now = t.read(name, slice)
		}
		t.set(name, now)
	}
	return t.Pending() > 0
}

// nameOf returns an object's name in memory of its own, so that no record
// keeps a piece of what the object was decoded from.
func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: strings.Clone(m.Namespace), Name: strings.Clone(m.Name)}
}

// record is what is kept of an object; nil stands for no object.
type record[R any] interface {
	comparable
	equal(R) bool
}

// tracker gathers the changes of one kind of object. It compares with what was
// taken last, so that events that come to nothing (a resync, a change of a field
// we do not read, an addition that is deleted again) are no change.
type tracker[R record[R]] struct {
	known   map[types.NamespacedName]R // as taken last
	pending map[types.NamespacedName]R // as it is now, where that differs
}

func newTracker[R record[R]]() tracker[R] {
	return tracker[R]{known: map[types.NamespacedName]R{}, pending: map[types.NamespacedName]R{}}
}

// set holds what an object is now.
func (t *tracker[R]) set(name types.NamespacedName, now R) {
	if now.equal(t.known[name]) {
		delete(t.pending, name)
	} else {
		t.pending[name] = now
	}
}

// Pending returns how many objects have changes that no Update has taken.
func (t *tracker[R]) Pending() int { return len(t.pending) }

// take calls apply with what is pending and holds it as known.
func (t *tracker[R]) take(apply func(name types.NamespacedName, from, to R)) {
	var none R
	for name, now := range t.pending {
		apply(name, t.known[name], now)
		if now == none {
			delete(t.known, name)
		} else {
			t.known[name] = now
		}
	}
	if len(t.pending) > 0 {
		// A new map, because clearing one costs what its largest content did.
		t.pending = map[types.NamespacedName]R{}
	}
}
