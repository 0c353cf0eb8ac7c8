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

// Handler handles events of all four kinds; of Nodes, of the one this process runs
// on and no other. An Update has no old object if it is new, and no current one if
// it is gone. The Synced method of a kind is called once, when every object of it
// that there was at the start has been delivered. Objects are shared: read them only.
// Of an old object a handler may rely on the name, and on the annotation by which an
// EndpointSlice tells when its last change began: a source need not keep more.
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
	// Run delivers until ctx ends and then returns nil; after it has returned
	// the handler is not called again. Everything of a kind that is there at
	// the start comes before that kind's Synced call. Calls for one kind come
	// one after the other; calls for different kinds may be concurrent.
	Run(ctx context.Context, h Handler) error
}

const (
	// LabelServiceProxyName on a Service says that another proxy serves it.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless on an EndpointSlice says that its Service has no address.
	LabelHeadless = v1.IsHeadlessService
)

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
	empty        T
	wants        func(T) bool
	handle       func(old, cur T)
	handleSynced func()

	mu     sync.Mutex
	known  map[types.NamespacedName]seen
	synced bool
}

// seen is what is remembered of an object that was passed on.
type seen struct {
	version string
	trigger string // what an EndpointSlice says of the change that caused it
}

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
	c.handle(c.old(name), obj)
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
		c.handle(c.old(name), none)
		delete(c.known, name)
	}
}

// old returns what is still known of an object that was passed on earlier.
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

// Synced passes on that everything there was at the start has been delivered.
// Only the first call does something.
func (c *Config[T]) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		c.synced = true
		c.handleSynced()
	}
}

// WantsService reports whether this proxy serves a Service: no other proxy is
// named in its labels, and it is not headless.
func WantsService(svc *v1.Service) bool {
	_, other := svc.Labels[LabelServiceProxyName]
	return !other && svc.Spec.ClusterIP != v1.ClusterIPNone
}

// WantsEndpointSlice reports whether a slice is not marked as that of a headless
// Service.
func WantsEndpointSlice(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels[LabelHeadless]
	return !headless
}

// NewServiceConfig returns a Config that passes on the Services this proxy
// serves.
func NewServiceConfig(h Handler) *Config[*v1.Service] {
	return newConfig(&v1.Service{}, WantsService, h.OnServiceUpdate, h.OnServiceSynced)
}

// NewEndpointSliceConfig returns a Config that passes on the slices of Services
// that are not headless.
func NewEndpointSliceConfig(h Handler) *Config[*discoveryv1.EndpointSlice] {
	return newConfig(&discoveryv1.EndpointSlice{}, WantsEndpointSlice, h.OnEndpointSliceUpdate, h.OnEndpointSlicesSynced)
}

// NewNodeConfig returns a Config that passes on the Node of this name and no
// other.
func NewNodeConfig(name string, h Handler) *Config[*v1.Node] {
	return newConfig(&v1.Node{}, func(n *v1.Node) bool { return n.Name == name }, h.OnNodeUpdate, h.OnNodeSynced)
}

// NewServiceCIDRConfig returns a Config that passes everything on.
func NewServiceCIDRConfig(h Handler) *Config[*networkingv1.ServiceCIDR] {
	return newConfig(&networkingv1.ServiceCIDR{}, func(*networkingv1.ServiceCIDR) bool { return true },
		h.OnServiceCIDRUpdate, h.OnServiceCIDRsSynced)
}

func newConfig[T Object](empty T, wants func(T) bool, handle func(old, cur T), synced func()) *Config[T] {
	return &Config[T]{
		empty: empty, wants: wants, handle: handle, handleSynced: synced, known: map[types.NamespacedName]seen{},
	}
}
