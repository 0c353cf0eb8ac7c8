package informer

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// selectors is what the server is asked to filter by; empty: everything.
type selectors struct{ labels, fields string }

func (s selectors) set(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = s.labels, s.fields
}

// resource is the part of a typed client that an informer needs.
type resource[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// checkList refuses a list that no API server has made: whatever else answers,
// a proxy or a server of another kind, must not be taken for a cluster without
// objects, which would take every Service away.
func checkList(list runtime.Object, resource string) error {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	if m.GetResourceVersion() == "" {
		return fmt.Errorf("list %s: the answer is not an API server's, it has no resourceVersion", resource)
	}
	return nil
}

// listWatch returns what an informer lists and watches with. Errors of a watch
// go through errors first, because an informer keeps some to itself.
func listWatch[L runtime.Object](api resource[L], errors *watchErrors, s selectors) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			s.set(&o)
			list, err := api.List(ctx, o)
			if err != nil {
				return nil, err
			}
			return list, checkList(list, errors.resource)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.set(&o)
			for attempt := 0; ; attempt++ {
				w, err := api.Watch(ctx, o)
				if !streams(o) || !apierrors.IsTooManyRequests(err) {
					return w, errors.intercept(ctx, o, err)
				}
				if err := errors.pause(ctx, err, attempt); err != nil {
					return nil, err
				}
			}
		},
	}
}
