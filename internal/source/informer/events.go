package informer

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// sink is the side of a Config that takes events.
type sink[T any] interface {
	Add(obj T)
	Update(old, cur T)
	Delete(obj T)
}

// pass hands the events of an informer to a sink. An informer still empties
// its queue after it was told to stop; what comes then is dropped.
func pass[T metav1.Object](ctx context.Context, to sink[T]) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if obj, ok := o.(T); ok && ctx.Err() == nil {
				to.Add(obj)
			}
		},
		UpdateFunc: func(o, c any) {
			old, isOld := o.(T)
			cur, isCur := c.(T)
			if isOld && isCur && !sameVersion(old, cur) && ctx.Err() == nil {
				to.Update(old, cur)
			}
		},
		DeleteFunc: func(o any) {
			if obj, ok := unwrap[T](o); ok && ctx.Err() == nil {
				to.Delete(obj)
			}
		},
	}
}

// sameVersion says that nothing has changed. A resync brings every object
// again, and so does the list after a broken watch.
func sameVersion(old, cur metav1.Object) bool {
	return old.GetResourceVersion() != "" && old.GetResourceVersion() == cur.GetResourceVersion()
}

// unwrap returns the object of a delete event. When the watch missed the
// deletion itself, client-go wraps the last state it knew.
func unwrap[T any](o any) (T, bool) {
	if missed, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = missed.Obj
	}
	obj, ok := o.(T)
	return obj, ok
}

// transform makes an informer keep what trim returns. Anything that is not the
// informer's kind, such as a missed deletion, passes unchanged.
func transform[T any](trim func(T) T) cache.TransformFunc {
	return func(o any) (any, error) {
		if obj, ok := o.(T); ok {
			return trim(obj), nil
		}
		return o, nil
	}
}
