package resolve

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ServiceChangeTracker gathers changes of Services until [Resolver.Update]
// takes them: all changes of one Service become one, and none if it is as
// Update last saw it.
type ServiceChangeTracker struct {
	pendingRecords[*service]
	ignoreExternalIPs bool
}

// Update notes an event: previous is nil for an addition, current for a
// deletion. It reports whether any Service's change is pending. Neither object
// is kept.
func (t *ServiceChangeTracker) Update(previous, current *v1.Service) bool {
	switch {
	case current != nil:
		name := nameOf(&current.ObjectMeta)
		return t.set(name, readService(name, current, t.ignoreExternalIPs))
	case previous != nil:
		return t.set(nameOf(&previous.ObjectMeta), nil)
	default:
		return t.Pending() > 0
	}
}

// EndpointsChangeTracker gathers changes of EndpointSlices until
// [Resolver.Update] takes them, as [ServiceChangeTracker] does for Services.
type EndpointsChangeTracker struct {
	pendingRecords[*endpointSlice]
	nodeName string
}

// Update notes that a slice was added or changed, or with remove that it is
// gone. It reports whether any slice's change is pending. The object is not
// kept.
func (t *EndpointsChangeTracker) Update(slice *discoveryv1.EndpointSlice, remove bool) bool {
	if slice == nil {
		return t.Pending() > 0
	}
	name := nameOf(&slice.ObjectMeta)
	if remove {
		return t.set(name, nil)
	}
	return t.set(name, t.read(name, slice))
}

// nameOf returns an object's name in memory of its own, so that no record
// keeps a piece of what the object was decoded from.
func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: strings.Clone(m.Namespace), Name: strings.Clone(m.Name)}
}
