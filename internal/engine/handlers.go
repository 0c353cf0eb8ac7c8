package engine

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// update calls a function under the lock, and requests a sync if the function
// reports that a change is pending. Until all Services and EndpointSlices have been
// delivered no sync is possible, so none is requested: a run that does nothing would
// delay the first sync by the minimum interval.
func (e *Engine) update(f func() bool) {
	e.mu.Lock()
	due := f() && e.synced.services && e.synced.slices
	if due && e.firstEvent.IsZero() {
		e.firstEvent = time.Now()
	}
	e.mu.Unlock()
	if due {
		e.Sync()
	}
}

// markSynced records that all objects of a kind have been delivered.
func (e *Engine) markSynced(kind *bool) {
	e.update(func() bool {
		*kind = true
		return true
	})
}

func (e *Engine) OnServiceUpdate(old, cur *v1.Service) {
	e.update(func() bool {
		pending := e.resolver.Services.Update(old, cur)
		e.observer.ServiceSeen(e.resolver.Services.Pending())
		return pending
	})
}

func (e *Engine) OnServiceSynced() { e.markSynced(&e.synced.services) }

func (e *Engine) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	e.update(func() bool {
		pending := e.resolver.Endpoints.Update(cmp.Or(cur, old), cur == nil)
		e.observer.EndpointSliceSeen(old, cur, e.resolver.Endpoints.Pending())
		return pending
	})
}

func (e *Engine) OnEndpointSlicesSynced() { e.markSynced(&e.synced.slices) }

func (e *Engine) OnNodeUpdate(_, cur *v1.Node) {
	e.update(func() bool {
		e.observer.NodeSeen(cur)
		return e.resolver.UpdateNode(cur)
	})
}

func (e *Engine) OnNodeSynced() { e.markSynced(&e.synced.node) }

func (e *Engine) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	e.update(func() bool { return e.resolver.UpdateServiceCIDR(old, cur) })
}

// OnServiceCIDRsSynced does nothing. The first sync does not wait for ServiceCIDRs:
// every Service works without them, and once they are known, packets to unallocated
// ClusterIPs are dropped.
func (e *Engine) OnServiceCIDRsSynced() {}
