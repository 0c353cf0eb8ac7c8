package informer

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"sluice/internal/source"
)

// queue stands where an informer has its queue and its cache, and has neither:
// it passes objects on to a Config, and the handler keeps what it needs of them. A
// list that comes object by object is passed on in the same way; what the informer
// gathers of it is names. One goroutine of the informer calls it.
type queue[T source.Object] struct {
	ctx context.Context // what comes after its end is dropped
	to  *source.Config[T]

	first sync.Once
	whole chan struct{} // closed when the first list has been passed on
	last  sync.Once
	end   chan struct{} // closed when the informer has ended
}

var (
	_ cache.Queue             = (*queue[*v1.Service])(nil)
	_ cache.TransformingStore = (*queue[*v1.Service])(nil)
)

func newQueue[T source.Object](ctx context.Context, to *source.Config[T]) *queue[T] {
	return &queue[T]{ctx: ctx, to: to, whole: make(chan struct{}), end: make(chan struct{})}
}

// Add takes a new object.
func (q *queue[T]) Add(o any) error { return q.Update(o) }

// Update takes a new or changed object.
func (q *queue[T]) Update(o any) error {
	if obj, ok := o.(T); ok && q.ctx.Err() == nil {
		q.to.Set(obj)
	}
	return nil
}

// Delete takes an object that is gone.
func (q *queue[T]) Delete(o any) error {
	if obj, ok := o.(T); ok && q.ctx.Err() == nil {
		q.to.Forget(source.NameOf(obj))
	}
	return nil
}

// Replace takes a list of everything that there is.
func (q *queue[T]) Replace(list []any, _ string) error {
	there := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		switch o := o.(type) {
		case types.NamespacedName: // it has been passed on
			there[o] = true
		case T:
			there[source.NameOf(o)] = true
			_ = q.Update(o) // it has no error
		}
	}
	if q.ctx.Err() == nil {
		q.to.Retain(there)
	}
	q.first.Do(func() { close(q.whole) })
	return nil
}

// Transformer sees what the informer gathers before it calls Replace: it passes
// objects on and leaves their names. Should the list break off, the next one
// tells which of them are gone.
func (q *queue[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		obj, ok := o.(T)
		if !ok {
			return o, nil
		}
		return source.NameOf(obj), q.Update(obj)
	}
}

// Resync does nothing: the handler knows all objects.
func (q *queue[T]) Resync() error { return nil }

// Pop waits for the end, for nothing is ever queued.
func (q *queue[T]) Pop(cache.PopProcessFunc) (any, error) {
	<-q.end
	return nil, cache.ErrFIFOClosed
}

// Close lets Pop end.
func (q *queue[T]) Close() { q.last.Do(func() { close(q.end) }) }

// HasSynced reports whether the first list has been passed on.
func (q *queue[T]) HasSynced() bool { return cache.IsDone(q) }

// HasSyncedChecker waits for that.
func (q *queue[T]) HasSyncedChecker() cache.DoneChecker { return q }

// Name and Done make the queue a DoneChecker.
func (q *queue[T]) Name() string { return "first list" }

// Done is closed when the first list has been passed on.
func (q *queue[T]) Done() <-chan struct{} { return q.whole }
