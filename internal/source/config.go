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

// listener is one registered handler of one kind, with the kind's name taken
// out of its method names.
type listener[T any] struct {
	add    func(T)
	update func(old, cur T)
	remove func(T)
	synced func()
}

// fanOut passes the events of one kind on to its listeners, as they look
// through a filter: an object that stops to match is deleted, one that starts
// to match is added. Sources call Add, Update, Delete and Synced; listeners are
// called with the lock held, one event at a time, and must not call back.
type fanOut[T comparable] struct {
	wants func(T) bool

	mu        sync.Mutex
	listeners []listener[T]
	synced    bool
}

func (f *fanOut[T]) register(l listener[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners, l)
}

// Add passes a new object on, if it is wanted.
func (f *fanOut[T]) Add(obj T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wants(obj) {
		f.added(obj)
	}
}

// Update passes a change on. The same object again, which is what a resync
// brings, is no change.
func (f *fanOut[T]) Update(old, cur T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old == cur {
		return
	}
	switch before, now := f.wants(old), f.wants(cur); {
	case before && now:
		for _, l := range f.listeners {
			l.update(old, cur)
		}
	case before:
		f.removed(old)
	case now:
		f.added(cur)
	}
}

// Set passes on what an object is now, for a source that keeps track of what
// its listeners know. It reports whether they know the object from now on.
func (f *fanOut[T]) Set(known bool, old, cur T) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := f.wants(cur)
	switch {
	case known && wanted:
		for _, l := range f.listeners {
			l.update(old, cur)
		}
	case known:
		f.removed(old)
	case wanted:
		f.added(cur)
	}
	return wanted
}

// Forget passes on that an object is gone which listeners know.
func (f *fanOut[T]) Forget(obj T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed(obj)
}

// Delete passes a removal on, if the object was wanted.
func (f *fanOut[T]) Delete(obj T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wants(obj) {
		f.removed(obj)
	}
}

// Synced passes on that everything there was at the start has been delivered.
// Only the first call does something.
func (f *fanOut[T]) Synced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.synced {
		return
	}
	f.synced = true
	for _, l := range f.listeners {
		l.synced()
	}
}

func (f *fanOut[T]) added(obj T) {
	for _, l := range f.listeners {
		l.add(obj)
	}
}

func (f *fanOut[T]) removed(obj T) {
	for _, l := range f.listeners {
		l.remove(obj)
	}
}

// ServiceConfig filters Services and fans them out.
type ServiceConfig struct{ fanOut[*v1.Service] }

// NewServiceConfig returns a ServiceConfig that passes on the Services this
// proxy serves, as [WantsService] has it.
func NewServiceConfig() *ServiceConfig {
	return &ServiceConfig{fanOut[*v1.Service]{wants: WantsService}}
}

// RegisterEventHandler adds a handler. It is called before the first event.
func (c *ServiceConfig) RegisterEventHandler(h ServiceHandler) {
	c.register(listener[*v1.Service]{
		h.OnServiceAdd, h.OnServiceUpdate, h.OnServiceDelete, h.OnServiceSynced,
	})
}

// WantsService says whether this proxy serves the Service: no other proxy is
// named in its labels, and it is not headless.
func WantsService(svc *v1.Service) bool {
	_, other := svc.Labels[LabelServiceProxyName]
	return !other && svc.Spec.ClusterIP != v1.ClusterIPNone
}

// EndpointSliceConfig filters EndpointSlices and fans them out.
type EndpointSliceConfig struct {
	fanOut[*discoveryv1.EndpointSlice]
}

// NewEndpointSliceConfig returns an EndpointSliceConfig that passes on the
// slices which [WantsEndpointSlice] wants.
func NewEndpointSliceConfig() *EndpointSliceConfig {
	return &EndpointSliceConfig{fanOut[*discoveryv1.EndpointSlice]{wants: WantsEndpointSlice}}
}

// RegisterEventHandler adds a handler. It is called before the first event.
func (c *EndpointSliceConfig) RegisterEventHandler(h EndpointSliceHandler) {
	c.register(listener[*discoveryv1.EndpointSlice]{
		h.OnEndpointSliceAdd, h.OnEndpointSliceUpdate, h.OnEndpointSliceDelete, h.OnEndpointSlicesSynced,
	})
}

// WantsEndpointSlice says whether the slice may belong to a Service that this
// proxy serves: it is not marked as that of a headless one.
func WantsEndpointSlice(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels[LabelHeadless]
	return !headless
}

// NodeConfig filters Nodes and fans them out.
type NodeConfig struct{ fanOut[*v1.Node] }

// NewNodeConfig returns a NodeConfig that passes on the Node of this name and
// no other.
func NewNodeConfig(name string) *NodeConfig {
	return &NodeConfig{fanOut[*v1.Node]{wants: func(n *v1.Node) bool { return n.Name == name }}}
}

// RegisterEventHandler adds a handler. It is called before the first event.
func (c *NodeConfig) RegisterEventHandler(h NodeHandler) {
	c.register(listener[*v1.Node]{h.OnNodeAdd, h.OnNodeUpdate, h.OnNodeDelete, h.OnNodeSynced})
}

// ServiceCIDRConfig fans ServiceCIDRs out.
type ServiceCIDRConfig struct {
	fanOut[*networkingv1.ServiceCIDR]
}

// NewServiceCIDRConfig returns a ServiceCIDRConfig, which passes everything on.
func NewServiceCIDRConfig() *ServiceCIDRConfig {
	all := func(*networkingv1.ServiceCIDR) bool { return true }
	return &ServiceCIDRConfig{fanOut[*networkingv1.ServiceCIDR]{wants: all}}
}

// RegisterEventHandler adds a handler. It is called before the first event.
func (c *ServiceCIDRConfig) RegisterEventHandler(h ServiceCIDRHandler) {
	c.register(listener[*networkingv1.ServiceCIDR]{
		h.OnServiceCIDRAdd, h.OnServiceCIDRUpdate, h.OnServiceCIDRDelete, h.OnServiceCIDRsSynced,
	})
}
