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
	ledger[*service]
	ignoreExternalIPs bool
}

// Update notes an event: previous is nil for an addition, current for a
// deletion. It reports whether any Service's change is pending. Neither object
// is kept.
func (t *ServiceChangeTracker) Update(previous, current *v1.Service) bool {
	switch {
	case current != nil:
		name := nameOf(&current.ObjectMeta)
		return t.note(name, readService(name, current, t.ignoreExternalIPs))
	case previous != nil:
		return t.note(nameOf(&previous.ObjectMeta), nil)
	default:
		return t.isPending()
	}
}

// EndpointsChangeTracker gathers changes of EndpointSlices until
// [Resolver.Update] takes them, as [ServiceChangeTracker] does for Services.
type EndpointsChangeTracker struct {
	ledger[*endpointSlice]
	nodeName string
}

// Update notes that a slice was added or changed, or with remove that it is
// gone. It reports whether any slice's change is pending. The object is not
// kept.
func (t *EndpointsChangeTracker) Update(slice *discoveryv1.EndpointSlice, remove bool) bool {
	if slice == nil {
		return t.isPending()
	}
	name := nameOf(&slice.ObjectMeta)
	if remove {
		return t.note(name, nil)
	}
	return t.note(name, readSlice(name, slice, t.nodeName))
}

// nameOf returns an object's name in memory of its own, so that no record
// keeps a piece of what the object was decoded from.
func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: strings.Clone(m.Namespace), Name: strings.Clone(m.Name)}
}
