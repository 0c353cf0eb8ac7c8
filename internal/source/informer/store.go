package informer

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"sluice/internal/source"
)

// store stands where an informer has its cache, and is none: it passes objects on
// to a Config, and the handler keeps what it needs of them. A list that comes
// object by object is passed on in the same way; what is gathered of it is names.
// One goroutine calls it.
type store[T source.Object] struct {
	ctx   context.Context // what comes after its end is dropped
	to    *source.Config[T]
	first sync.Once
	whole chan struct{} // closed when the first list has been passed on
}

var _ cache.TransformingStore = (*store[*v1.Service])(nil)

func newStore[T source.Object](ctx context.Context, to *source.Config[T]) *store[T] {
	return &store[T]{ctx: ctx, to: to, whole: make(chan struct{})}
}

func (s *store[T]) Add(o any) error { return s.Update(o) }

func (s *store[T]) Update(o any) error {
	if obj, ok := o.(T); ok && s.ctx.Err() == nil {
		s.to.Set(obj)
	}
	return nil
}

func (s *store[T]) Delete(o any) error {
	if obj, ok := o.(T); ok && s.ctx.Err() == nil {
		s.to.Forget(source.NameOf(obj))
	}
	return nil
}

func (s *store[T]) Replace(list []any, _ string) error {
	there := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		switch o := o.(type) {
		case types.NamespacedName: // it has been passed on
			there[o] = true
		case T:
			there[source.NameOf(o)] = true
			_ = s.Update(o) // it has no error
		}
	}
	if s.ctx.Err() == nil {
		s.to.Retain(there)
	}
	s.first.Do(func() { close(s.whole) })
	return nil
}

// Transformer sees what the informer gathers before it calls Replace: it passes
// objects on and leaves their names. Should the list break off, the next one
// tells which of them are gone.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		obj, ok := o.(T)
		if !ok {
			return o, nil
		}
		return source.NameOf(obj), s.Update(obj)
	}
}

// Resync does nothing: the handler knows all objects.
func (s *store[T]) Resync() error { return nil }
