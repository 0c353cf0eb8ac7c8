package engine

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// feed hands an object to the resolver and asks for a sync if that left
// something to do. Before Services and EndpointSlices have come whole there is
// nothing to ask for, and a run in vain would delay the first one.
func (e *Engine) feed(update func() bool) {
	e.mu.Lock()
	due := update() && e.heard.services && e.heard.slices
	if due && e.eventAt.IsZero() {
		e.eventAt = time.Now()
	}
	e.mu.Unlock()
	if due {
		e.Sync()
	}
}

// hear notes that a kind of object has come whole.
func (e *Engine) hear(kind *bool) {
	e.feed(func() bool {
		*kind = true
		return true
	})
}

func (e *Engine) OnServiceUpdate(old, cur *v1.Service) {
	e.feed(func() bool {
		pending := e.resolver.Services.Update(old, cur)
		e.observer.ServiceSeen(e.resolver.Services.Pending())
		return pending
	})
}

func (e *Engine) OnServiceSynced() { e.hear(&e.heard.services) }

func (e *Engine) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	e.feed(func() bool {
		pending := e.resolver.Endpoints.Update(cmp.Or(cur, old), cur == nil)
		e.observer.EndpointSliceSeen(old, cur, e.resolver.Endpoints.Pending())
		return pending
	})
}

func (e *Engine) OnEndpointSlicesSynced() { e.hear(&e.heard.slices) }

func (e *Engine) OnNodeUpdate(_, cur *v1.Node) {
	e.feed(func() bool {
		e.observer.NodeSeen(cur)
		return e.resolver.UpdateNode(cur)
	})
}

func (e *Engine) OnNodeSynced() { e.hear(&e.heard.node) }

func (e *Engine) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	e.feed(func() bool { return e.resolver.UpdateServiceCIDR(old, cur) })
}

// OnServiceCIDRsSynced changes nothing: addresses that nobody was given are
// silent a moment later, and every Service works without.
func (e *Engine) OnServiceCIDRsSynced() {}
