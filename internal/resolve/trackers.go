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

// ServiceChangeTracker collects changes of Services until [Resolver.Update] takes
// them. All changes of one Service are combined into one; there is none if the Service
// is again as Update last took it.
type ServiceChangeTracker struct {
	tracker[*service]
	ignoreExternalIPs bool
	allowed           apiobject.Allowed
	balancing         Balancing
}

// Update handles an event: previous is nil if the Service was added, current if it was
// deleted. It reports whether a change of any Service is pending. It keeps neither
// object.
func (t *ServiceChangeTracker) Update(previous, current *v1.Service) bool {
	if obj := cmp.Or(current, previous); obj != nil {
		name := nameOf(&obj.ObjectMeta)
		t.set(name, t.parse(name, current))
	}
	return t.Pending() > 0
}

// EndpointsChangeTracker collects changes of EndpointSlices until [Resolver.Update]
// takes them, as [ServiceChangeTracker] does for Services.
type EndpointsChangeTracker struct {
	tracker[*endpointSlice]
	nodeName  string
	balancing Balancing
}

// Update handles an event: the slice was added or changed, or deleted if remove is set.
// It reports whether a change of any slice is pending. It does not keep the object.
func (t *EndpointsChangeTracker) Update(slice *discoveryv1.EndpointSlice, remove bool) bool {
	if slice != nil {
		name := nameOf(&slice.ObjectMeta)
		var now *endpointSlice
		if !remove {
			now = t.parse(name, slice)
		}
		t.set(name, now)
	}
	return t.Pending() > 0
}

// nameOf returns an object's name. It clones the strings, which may be parts of the
// buffer that the object was decoded from, so that records do not keep that alive.
func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: strings.Clone(m.Namespace), Name: strings.Clone(m.Name)}
}

// record is what is kept of an object; nil means that there is no object.
type record[R any] interface {
	comparable
	equal(R) bool
}

// tracker collects the changes of one kind of object. It compares each object with
// what Update last took, so that events without an effect (a resync, a change of a
// field that is not used, an object that was added and deleted again) are no change.
type tracker[R record[R]] struct {
	known   map[types.NamespacedName]R // as last taken
	pending map[types.NamespacedName]R // the current records that differ from known
}

func newTracker[R record[R]]() tracker[R] {
	return tracker[R]{known: map[types.NamespacedName]R{}, pending: map[types.NamespacedName]R{}}
}

// set sets the current record of an object.
func (t *tracker[R]) set(name types.NamespacedName, now R) {
	if now.equal(t.known[name]) {
		delete(t.pending, name)
	} else {
		t.pending[name] = now
	}
}

// Pending returns how many objects have changes that Update has not taken.
func (t *tracker[R]) Pending() int { return len(t.pending) }

// take calls apply for each pending change, which is known from then on.
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
		// Clearing a map costs as much as its largest size ever did, so make a new one.
		t.pending = map[types.NamespacedName]R{}
	}
}
