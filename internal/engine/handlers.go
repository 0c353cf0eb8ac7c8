package engine

import (
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
	e.mu.Unlock()
	if due {
		e.Sync()
	}
}

// OnServiceAdd takes a new Service.
func (e *Engine) OnServiceAdd(s *v1.Service) { e.OnServiceUpdate(nil, s) }

// OnServiceUpdate takes a changed Service.
func (e *Engine) OnServiceUpdate(old, cur *v1.Service) {
	e.feed(func() bool {
		pending := e.resolver.Services.Update(old, cur)
		if e.register != nil {
			e.register.ServiceSeen(e.resolver.Services.Pending())
		}
		return pending
	})
}

// OnServiceDelete takes a Service that is gone.
func (e *Engine) OnServiceDelete(s *v1.Service) { e.OnServiceUpdate(s, nil) }

// OnServiceSynced says that all Services there are have been delivered.
func (e *Engine) OnServiceSynced() { e.hear(&e.heard.services) }

// OnEndpointSliceAdd takes a new EndpointSlice.
func (e *Engine) OnEndpointSliceAdd(s *discoveryv1.EndpointSlice) { e.OnEndpointSliceUpdate(nil, s) }

// OnEndpointSliceUpdate takes a changed EndpointSlice.
func (e *Engine) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	e.feed(func() bool {
		slice, gone := cur, cur == nil
		if gone {
			slice = old
		}
		pending := e.resolver.Endpoints.Update(slice, gone)
		if e.register != nil {
			e.register.EndpointSliceSeen(old, cur, e.resolver.Endpoints.Pending())
		}
		return pending
	})
}

// OnEndpointSliceDelete takes an EndpointSlice that is gone.
func (e *Engine) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice) { e.OnEndpointSliceUpdate(s, nil) }

// OnEndpointSlicesSynced says that all EndpointSlices there are have been delivered.
func (e *Engine) OnEndpointSlicesSynced() { e.hear(&e.heard.slices) }

// OnNodeAdd takes this node's Node.
func (e *Engine) OnNodeAdd(n *v1.Node) {
	e.feed(func() bool { return e.resolver.UpdateNode(n) })
}

// OnNodeUpdate takes this node's changed Node.
func (e *Engine) OnNodeUpdate(_, cur *v1.Node) { e.OnNodeAdd(cur) }

// OnNodeDelete says that this node's Node is gone.
func (e *Engine) OnNodeDelete(*v1.Node) { e.OnNodeAdd(nil) }

// OnNodeSynced says that this node's Node has been delivered, if there is one.
func (e *Engine) OnNodeSynced() { e.hear(&e.heard.node) }

// OnServiceCIDRAdd takes a new ServiceCIDR.
func (e *Engine) OnServiceCIDRAdd(c *networkingv1.ServiceCIDR) { e.OnServiceCIDRUpdate(nil, c) }

// OnServiceCIDRUpdate takes a changed ServiceCIDR.
func (e *Engine) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	e.feed(func() bool { return e.resolver.UpdateServiceCIDR(old, cur) })
}

// OnServiceCIDRDelete takes a ServiceCIDR that is gone.
func (e *Engine) OnServiceCIDRDelete(c *networkingv1.ServiceCIDR) { e.OnServiceCIDRUpdate(c, nil) }

// OnServiceCIDRsSynced changes nothing: addresses that nobody was given are
// silent a moment later, and every Service works without.
func (e *Engine) OnServiceCIDRsSynced() {}

// hear notes that a kind of object has come whole.
func (e *Engine) hear(kind *bool) {
	e.mu.Lock()
	*kind = true
	due := e.heard.services && e.heard.slices
	e.mu.Unlock()
	if due {
		e.Sync()
	}
}
