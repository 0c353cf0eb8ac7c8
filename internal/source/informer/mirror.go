package informer

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"sluice/internal/source"
)

// mirror stands where an informer has its queue and its cache, and has neither:
// the handler keeps what it needs of an object. It remembers which version
// was passed on, so that an object that comes again is no change, and one that a
// new list does not have is gone. A list that comes object by object is passed on
// in the same way; what the informer gathers of it is names. One goroutine of the
// informer calls it.
type mirror[T object] struct {
	ctx     context.Context // what comes after its end is dropped
	to      *source.Config[T]
	example T // without any content
	known   map[types.NamespacedName]seen

	first sync.Once
	whole chan struct{} // closed when the first list has been passed on
	last  sync.Once
	end   chan struct{} // closed when the informer has ended
}

// seen is what is remembered of an object.
type seen struct {
	version string
	trigger string // what an EndpointSlice says of the change that caused it
}

var (
	_ cache.Queue             = (*mirror[*v1.Service])(nil)
	_ cache.TransformingStore = (*mirror[*v1.Service])(nil)
)

func newMirror[T object](ctx context.Context, to *source.Config[T], example T) *mirror[T] {
	return &mirror[T]{
		ctx: ctx, to: to, example: example, known: map[types.NamespacedName]seen{},
		whole: make(chan struct{}), end: make(chan struct{}),
	}
}

func keyOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// Add takes a new object.
func (m *mirror[T]) Add(o any) error { return m.Update(o) }

// Update takes a new or changed object.
func (m *mirror[T]) Update(o any) error {
	if obj, ok := o.(T); ok && m.ctx.Err() == nil {
		m.set(obj)
	}
	return nil
}

// Delete takes an object that is gone.
func (m *mirror[T]) Delete(o any) error {
	if obj, ok := o.(T); ok && m.ctx.Err() == nil {
		m.forget(keyOf(obj))
	}
	return nil
}

// Replace takes a list of everything that there is.
func (m *mirror[T]) Replace(list []any, _ string) error {
	there := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		switch o := o.(type) {
		case types.NamespacedName: // it has been passed on
			there[o] = true
		case T:
			there[keyOf(o)] = true
			_ = m.Update(o) // it has no error
		}
	}
	for key := range m.known {
		if !there[key] && m.ctx.Err() == nil {
			m.forget(key)
		}
	}
	m.first.Do(func() { close(m.whole) })
	return nil
}

func (m *mirror[T]) set(obj T) {
	key := keyOf(obj)
	was, known := m.known[key]
	version := obj.GetResourceVersion()
	if known && version != "" && version == was.version {
		return
	}
	if !m.to.Set(known, m.old(key, was), obj) {
		delete(m.known, key)
		return
	}
	m.known[key] = seen{version, obj.GetAnnotations()[v1.EndpointsLastChangeTriggerTime]}
}

func (m *mirror[T]) forget(key types.NamespacedName) {
	was, known := m.known[key]
	if !known {
		return
	}
	delete(m.known, key)
	m.to.Forget(m.old(key, was))
}

// old returns what is still known of an object that was passed on earlier.
func (m *mirror[T]) old(key types.NamespacedName, was seen) T {
	obj := m.example.DeepCopyObject().(T)
	obj.SetNamespace(key.Namespace)
	obj.SetName(key.Name)
	obj.SetResourceVersion(was.version)
	if was.trigger != "" {
		obj.SetAnnotations(map[string]string{v1.EndpointsLastChangeTriggerTime: was.trigger})
	}
	return obj
}

// Transformer sees what the informer gathers before it calls Replace: it passes
// objects on and leaves their names. Should the list break off, the next one
// tells which of them are gone.
func (m *mirror[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		obj, ok := o.(T)
		if !ok {
			return o, nil
		}
		return keyOf(obj), m.Update(obj)
	}
}

// Resync does nothing: the handler knows all objects.
func (m *mirror[T]) Resync() error { return nil }

// Pop waits for the end, for nothing is ever queued.
func (m *mirror[T]) Pop(cache.PopProcessFunc) (any, error) {
	<-m.end
	return nil, cache.ErrFIFOClosed
}

// Close lets Pop end.
func (m *mirror[T]) Close() { m.last.Do(func() { close(m.end) }) }

// HasSynced reports whether the first list has been passed on.
func (m *mirror[T]) HasSynced() bool { return cache.IsDone(m) }

// HasSyncedChecker waits for that.
func (m *mirror[T]) HasSyncedChecker() cache.DoneChecker { return m }

// Name and Done make the mirror a DoneChecker.
func (m *mirror[T]) Name() string { return "first list" }

// Done is closed when the first list has been passed on.
func (m *mirror[T]) Done() <-chan struct{} { return m.whole }
