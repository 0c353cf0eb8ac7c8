package source

import (
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// LabelServiceProxyName on a Service says that another proxy serves it.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless on an EndpointSlice says that its Service has no address.
	LabelHeadless = v1.IsHeadlessService
)

// Object is an API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Config passes the events of one kind on to its handler, as they look through
// a filter: an object that stops to match is deleted, one that starts to match
// is added. It does not keep objects, since the handler keeps what it needs; it
// remembers which version was passed on, so that an object that comes again is no
// change. The handler is called with the lock held, one event at a time, and must
// not call back.
type Config[T Object] struct {
	wants   func(T) bool
	handler handler[T]

	mu     sync.Mutex
	known  map[types.NamespacedName]seen
	synced bool
}

// seen is what is remembered of an object that was passed on.
type seen struct {
	version string
	trigger string // what an EndpointSlice says of the change that caused it
}

// handler is the handler of one kind, with the kind's name taken out of its
// method names.
type handler[T any] struct {
	empty  T
	update func(old, cur T)
	synced func()
}

func newConfig[T Object](wants func(T) bool, h handler[T]) *Config[T] {
	return &Config[T]{wants: wants, handler: h, known: map[types.NamespacedName]seen{}}
}

// NameOf returns the name of an object.
func NameOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// Set passes on what an object is now.
func (c *Config[T]) Set(obj T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, version := NameOf(obj), obj.GetResourceVersion()
	switch was, known := c.known[name]; {
	case known && version != "" && version == was.version:
		return
	case !c.wants(obj):
		c.forget(name)
		return
	}
	c.handler.update(c.old(name), obj)
	c.known[name] = seen{version, obj.GetAnnotations()[v1.EndpointsLastChangeTriggerTime]}
}

// Forget passes on that an object is gone.
func (c *Config[T]) Forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(name)
}

// Retain passes on that all objects but these are gone, in order of their names.
func (c *Config[T]) Retain(names map[types.NamespacedName]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var gone []types.NamespacedName
	for name := range c.known {
		if !names[name] {
			gone = append(gone, name)
		}
	}
	slices.SortFunc(gone, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range gone {
		c.forget(name)
	}
}

func (c *Config[T]) forget(name types.NamespacedName) {
	if _, known := c.known[name]; known {
		var none T
		c.handler.update(c.old(name), none)
		delete(c.known, name)
	}
}

// old returns what is still known of an object that was passed on earlier.
func (c *Config[T]) old(name types.NamespacedName) (obj T) {
	was, known := c.known[name]
	if !known {
		return obj
	}
	obj = c.handler.empty.DeepCopyObject().(T)
	obj.SetNamespace(name.Namespace)
	obj.SetName(name.Name)
	obj.SetResourceVersion(was.version)
	if was.trigger != "" {
		obj.SetAnnotations(map[string]string{v1.EndpointsLastChangeTriggerTime: was.trigger})
	}
	return obj
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
	return newConfig(wants, handler[*v1.Service]{
		&v1.Service{}, h.OnServiceUpdate, h.OnServiceSynced,
	})
}

// NewEndpointSliceConfig returns a Config that passes on the slices which are
// not marked as those of a headless Service.
func NewEndpointSliceConfig(h EndpointSliceHandler) *EndpointSliceConfig {
	wants := func(slice *discoveryv1.EndpointSlice) bool {
		_, headless := slice.Labels[LabelHeadless]
		return !headless
	}
	return newConfig(wants, handler[*discoveryv1.EndpointSlice]{
		&discoveryv1.EndpointSlice{}, h.OnEndpointSliceUpdate, h.OnEndpointSlicesSynced,
	})
}

// NewNodeConfig returns a Config that passes on the Node of this name and no
// other.
func NewNodeConfig(name string, h NodeHandler) *NodeConfig {
	wants := func(n *v1.Node) bool { return n.Name == name }
	return newConfig(wants, handler[*v1.Node]{
		&v1.Node{}, h.OnNodeUpdate, h.OnNodeSynced,
	})
}

// NewServiceCIDRConfig returns a Config that passes everything on.
func NewServiceCIDRConfig(h ServiceCIDRHandler) *ServiceCIDRConfig {
	wants := func(*networkingv1.ServiceCIDR) bool { return true }
	return newConfig(wants, handler[*networkingv1.ServiceCIDR]{
		&networkingv1.ServiceCIDR{}, h.OnServiceCIDRUpdate, h.OnServiceCIDRsSynced,
	})
}
