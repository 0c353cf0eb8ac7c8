package informer

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice/internal/apiclient"
)

// resource is the objects of one kind that the API server has, in all
// namespaces.
type resource struct {
	client         rest.Interface
	group, name    string
	list           runtime.Object // an empty list of them
	labels, fields string         // what the server is asked to filter by; empty: everything
}

// List asks for all of them.
func (r *resource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := r.list.DeepCopyObject()
	return list, r.get(o).Do(ctx).Into(list)
}

// Watch asks for their changes.
func (r *resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.get(o).Watch(ctx)
}

func (r *resource) get(o metav1.ListOptions) *rest.Request {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.client.Get().AbsPath(apiclient.Path(r.group)).Resource(r.name).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.Unversioned).Timeout(timeout)
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

// listerWatcher is a resource, or a test's.
type listerWatcher interface {
	List(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns what an informer lists and watches with. Errors of a watch
// go through errors first, because an informer keeps some to itself.
func listWatch(of listerWatcher, errors *watchErrors) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := of.List(ctx, o)
			if err != nil {
				return nil, err
			}
			return list, checkList(list, errors.resource)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			for attempt := 0; ; attempt++ {
				w, err := of.Watch(ctx, o)
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
