package informer

import (
	"context"

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

// listWatch returns what an informer lists and watches with. Errors of a watch
// go through errors first, because an informer keeps some to itself.
func listWatch[L runtime.Object](api resource[L], errors *watchErrors, s selectors) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			s.set(&o)
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.set(&o)
			w, err := api.Watch(ctx, o)
			if err != nil {
				err = errors.intercept(ctx, o, err)
			}
			return w, err
		},
	}
}
