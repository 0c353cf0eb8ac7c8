package source

import (
	"context"
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

// Handler handles the events of all four kinds; the only Node is that of this process.
// In an Update, old is nil if the object was added, and cur is nil if it was deleted.
// The Synced method of a kind is called once, when every object that existed at the
// start has been delivered. Objects are shared and read-only. Of an old object, only
// the name, the resource version and the annotation
// endpoints.kubernetes.io/last-change-trigger-time are set: sources do not keep more.
type Handler interface {
	OnServiceUpdate(old, cur *v1.Service)
	OnServiceSynced()
	OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice)
	OnEndpointSlicesSynced()
	OnNodeUpdate(old, cur *v1.Node)
	OnNodeSynced()
	OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR)
	OnServiceCIDRsSynced()
}

// Source delivers objects to a Handler.
type Source interface {
	// Run delivers until ctx ends and then returns nil; it does not call the handler
	// after it has returned. It delivers every object of a kind that exists at the
	// start before it calls the Synced method of the kind. Calls for one kind are
	// sequential; calls for different kinds may be concurrent.
	Run(ctx context.Context, h Handler) error
}

const (
	// LabelServiceProxyName marks a Service that another proxy serves.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless marks an EndpointSlice of a headless Service.
	LabelHeadless = v1.IsHeadlessService
)

type Object interface {
	metav1.Object
	runtime.Object
}

// Config passes the events of one kind to a handler, through a filter: an object that
// stops matching is deleted, one that starts matching is added. It does not keep
// objects, but remembers the version that it passed on, so that it can drop an event
// that repeats it. It calls the handler with the lock held, for one event at a time;
// the handler must not call the Config. It is safe for concurrent use.
type Config[T Object] struct {
	empty        T
	wants        func(T) bool
	handle       func(old, cur T)
	handleSynced func()

	mu     sync.Mutex
	known  map[types.NamespacedName]seen
	synced bool
}

// seen is what is kept of an object that was passed on.
type seen struct {
	version string
	trigger string // the annotation last-change-trigger-time of an EndpointSlice
}

func NameOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// Set passes on that an object was added or changed.
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
	c.handle(c.old(name), obj)
	c.known[name] = seen{version, obj.GetAnnotations()[v1.EndpointsLastChangeTriggerTime]}
}

// Forget passes on that an object was deleted.
func (c *Config[T]) Forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(name)
}

// Retain passes on that all objects but these were deleted, in the order of their names.
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
		c.handle(c.old(name), none)
		delete(c.known, name)
	}
}

// old returns an object with what is known about the version that was last passed on,
// or nil if there is none.
func (c *Config[T]) old(name types.NamespacedName) (obj T) {
	was, known := c.known[name]
	if !known {
		return obj
	}
	obj = c.empty.DeepCopyObject().(T)
	obj.SetNamespace(name.Namespace)
	obj.SetName(name.Name)
	obj.SetResourceVersion(was.version)
	if was.trigger != "" {
		obj.SetAnnotations(map[string]string{v1.EndpointsLastChangeTriggerTime: was.trigger})
	}
	return obj
}

// Synced passes on that every object that existed at the start has been delivered. Calls
// after the first have no effect.
func (c *Config[T]) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		c.synced = true
		c.handleSynced()
	}
}

// WantsService reports whether this proxy serves a Service: its labels name no other
// proxy, and it is not headless.
func WantsService(svc *v1.Service) bool {
	_, other := svc.Labels[LabelServiceProxyName]
	return !other && svc.Spec.ClusterIP != v1.ClusterIPNone
}

// WantsEndpointSlice reports whether a slice is not labelled as that of a headless
// Service.
func WantsEndpointSlice(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels[LabelHeadless]
	return !headless
}

// NewServiceConfig returns a Config that passes on the Services that this proxy serves.
func NewServiceConfig(h Handler) *Config[*v1.Service] {
	return newConfig(&v1.Service{}, WantsService, h.OnServiceUpdate, h.OnServiceSynced)
}

// NewEndpointSliceConfig returns a Config that passes on the slices of Services
// that are not headless.
func NewEndpointSliceConfig(h Handler) *Config[*discoveryv1.EndpointSlice] {
	return newConfig(&discoveryv1.EndpointSlice{}, WantsEndpointSlice, h.OnEndpointSliceUpdate, h.OnEndpointSlicesSynced)
}

// NewNodeConfig returns a Config that passes on only the Node of this name.
func NewNodeConfig(name string, h Handler) *Config[*v1.Node] {
	return newConfig(&v1.Node{}, func(n *v1.Node) bool { return n.Name == name }, h.OnNodeUpdate, h.OnNodeSynced)
}

// NewServiceCIDRConfig returns a Config that passes on every ServiceCIDR.
func NewServiceCIDRConfig(h Handler) *Config[*networkingv1.ServiceCIDR] {
	return newConfig(&networkingv1.ServiceCIDR{}, func(*networkingv1.ServiceCIDR) bool { return true },
		h.OnServiceCIDRUpdate, h.OnServiceCIDRsSynced)
}

func newConfig[T Object](empty T, wants func(T) bool, handle func(old, cur T), synced func()) *Config[T] {
	return &Config[T]{
		empty: empty, wants: wants, handle: handle, handleSynced: synced, known: map[types.NamespacedName]seen{},
	}
}
