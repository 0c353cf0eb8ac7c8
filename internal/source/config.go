package source

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const (
	// LabelServiceProxyName on a Service says that another proxy serves it.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless on an EndpointSlice says that its Service has no address.
	LabelHeadless = v1.IsHeadlessService
)

// Config passes the events of one kind on to its handler, as they look through
// a filter: an object that stops to match is deleted, one that starts to match
// is added. The handler is called with the lock held, one event at a time, and
// must not call back.
type Config[T any] struct {
	wants   func(T) bool
	handler handler[T]

	mu     sync.Mutex
	synced bool
}

// handler is the handler of one kind, with the kind's name taken out of its
// method names.
type handler[T any] struct {
	add    func(T)
	update func(old, cur T)
	remove func(T)
	synced func()
}

// Set passes on what an object is now; known says whether the handler knows it,
// and old is what it was. It reports whether the handler knows it from now on.
func (c *Config[T]) Set(known bool, old, cur T) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted := c.wants(cur)
	switch {
	case known && wanted:
		c.handler.update(old, cur)
	case known:
		c.handler.remove(old)
	case wanted:
		c.handler.add(cur)
	}
	return wanted
}

// Forget passes on that an object is gone which the handler knows.
func (c *Config[T]) Forget(obj T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler.remove(obj)
}

// Synced passes on that everything there was at the start has been delivered.
// Only the first call does something.
func (c *Config[T]) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		c.synced = true
		c.handler.synced()
	}
}

// The Configs of the four kinds.
type (
	ServiceConfig       = Config[*v1.Service]
	EndpointSliceConfig = Config[*discoveryv1.EndpointSlice]
	NodeConfig          = Config[*v1.Node]
	ServiceCIDRConfig   = Config[*networkingv1.ServiceCIDR]
)

// NewServiceConfig returns a Config that passes on the Services this proxy
// serves: no other proxy is named in their labels, and they are not headless.
func NewServiceConfig(h ServiceHandler) *ServiceConfig {
	wants := func(svc *v1.Service) bool {
		_, other := svc.Labels[LabelServiceProxyName]
		return !other && svc.Spec.ClusterIP != v1.ClusterIPNone
	}
	return &ServiceConfig{wants: wants, handler: handler[*v1.Service]{
		h.OnServiceAdd, h.OnServiceUpdate, h.OnServiceDelete, h.OnServiceSynced,
	}}
}

// NewEndpointSliceConfig returns a Config that passes on the slices which are
// not marked as those of a headless Service.
func NewEndpointSliceConfig(h EndpointSliceHandler) *EndpointSliceConfig {
	wants := func(slice *discoveryv1.EndpointSlice) bool {
		_, headless := slice.Labels[LabelHeadless]
		return !headless
	}
	return &EndpointSliceConfig{wants: wants, handler: handler[*discoveryv1.EndpointSlice]{
		h.OnEndpointSliceAdd, h.OnEndpointSliceUpdate, h.OnEndpointSliceDelete, h.OnEndpointSlicesSynced,
	}}
}

// NewNodeConfig returns a Config that passes on the Node of this name and no
// other.
func NewNodeConfig(name string, h NodeHandler) *NodeConfig {
	wants := func(n *v1.Node) bool { return n.Name == name }
	return &NodeConfig{wants: wants, handler: handler[*v1.Node]{
		h.OnNodeAdd, h.OnNodeUpdate, h.OnNodeDelete, h.OnNodeSynced,
	}}
}

// NewServiceCIDRConfig returns a Config that passes everything on.
func NewServiceCIDRConfig(h ServiceCIDRHandler) *ServiceCIDRConfig {
	wants := func(*networkingv1.ServiceCIDR) bool { return true }
	return &ServiceCIDRConfig{wants: wants, handler: handler[*networkingv1.ServiceCIDR]{
		h.OnServiceCIDRAdd, h.OnServiceCIDRUpdate, h.OnServiceCIDRDelete, h.OnServiceCIDRsSynced,
	}}
}
