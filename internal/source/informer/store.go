package informer

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"sluice/internal/source"
)

// store takes the place of an informer's cache, but keeps no objects: it passes them to
// a Config, and the handler keeps what it needs. If a list is streamed object by object,
// the reflector collects only names for Replace. It is for one goroutine.
type store[T source.Object] struct {
	ctx     context.Context // objects that arrive after its end are dropped
	to      *source.Config[T]
	contact *contact
	first   sync.Once
	listed  chan struct{} // closed when the first list has been passed on
}

var (
	_ cache.TransformingStore      = (*store[*v1.Service])(nil)
	_ cache.ResourceVersionUpdater = (*store[*v1.Service])(nil)
)

func newStore[T source.Object](ctx context.Context, to *source.Config[T], c *contact) *store[T] {
	return &store[T]{ctx: ctx, to: to, contact: c, listed: make(chan struct{})}
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
		case types.NamespacedName: // The Transformer has passed on the object.
			there[o] = true
		case T:
			there[source.NameOf(o)] = true
			_ = s.Update(o) // It never fails.
		}
	}
	if s.ctx.Err() == nil {
		s.to.Retain(there)
	}
	s.first.Do(func() { close(s.listed) })
	return nil
}

// Transformer is called for each object of a streamed list, before Replace. It passes the
// object on and replaces it by its name. If the stream breaks off, Replace is called
// after the next one, and finds out which objects are gone.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		obj, ok := o.(T)
		if !ok {
			return o, nil
		}
		return source.NameOf(obj), s.Update(obj)
	}
}

// UpdateResourceVersion is called for each event and bookmark of a watch.
func (s *store[T]) UpdateResourceVersion(string) { s.contact.heard() }

// Resync does nothing, since the handler already has all objects.
func (s *store[T]) Resync() error { return nil }
