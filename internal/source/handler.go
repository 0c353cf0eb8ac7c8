package source

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// An Update has no old object if it is new, and no current one if it is gone. The
// Synced method of a handler is called once, when every object of the kind that
// there was at the start has been delivered. Objects are shared: read them only. Of
// an old object a handler may rely on the name, and on the annotation by which an
// EndpointSlice tells when its last change began: a source need not keep more.

// ServiceHandler handles events of Services.
type ServiceHandler interface {
	OnServiceUpdate(old, cur *v1.Service)
	OnServiceSynced()
}

// EndpointSliceHandler handles events of EndpointSlices.
type EndpointSliceHandler interface {
	OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice)
	OnEndpointSlicesSynced()
}

// NodeHandler handles events of the Node this process runs on, and no other.
type NodeHandler interface {
	OnNodeUpdate(old, cur *v1.Node)
	OnNodeSynced()
}

// ServiceCIDRHandler handles events of ServiceCIDRs.
type ServiceCIDRHandler interface {
	OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR)
	OnServiceCIDRsSynced()
}

// Handler handles events of all four kinds.
type Handler interface {
	ServiceHandler
	EndpointSliceHandler
	NodeHandler
	ServiceCIDRHandler
}

// Source delivers objects to a Handler.
type Source interface {
	// Run delivers until ctx ends and then returns nil; after it has returned
	// the handler is not called again. Everything of a kind that is there at
	// the start comes before that kind's Synced call. Calls for one kind come
	// one after the other; calls for different kinds may be concurrent.
	Run(ctx context.Context, h Handler) error
}
