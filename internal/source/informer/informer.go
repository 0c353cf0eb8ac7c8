package informer

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sluice/internal/source"
)

// New returns the Source that watches the API server of client, which is made by package
// apiclient. It watches only the Node of this name, and records when it hears from the
// server in contacts.
func New(client rest.Interface, nodeName string, contacts *Contacts) source.Source {
	return &apiServer{client, nodeName, contacts}
}

type apiServer struct {
	client   rest.Interface
	nodeName string
	contacts *Contacts
}

// Run implements [source.Source].
func (s *apiServer) Run(ctx context.Context, h source.Handler) error {
	var running sync.WaitGroup
	for _, w := range s.watches(ctx, h) {
		running.Go(func() { w.run(ctx) })
		running.Go(func() { w.waitForSync(ctx) })
	}
	running.Wait() // All of them return when ctx ends.
	return nil
}

// watches returns the watches of the four kinds. The Node comes first: it is a single
// object, and rows that depend on it are then resolved only once.
func (s *apiServer) watches(ctx context.Context, h source.Handler) []*kindWatch {
	return []*kindWatch{
		watchKind(ctx, s.contacts, &resource{
			client: s.client, name: "nodes", list: &v1.NodeList{},
			fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.nodeName).String(),
		}, &v1.Node{}, source.NewNodeConfig(s.nodeName, h)),
		watchKind(ctx, s.contacts, &resource{
			client: s.client, group: networkingv1.GroupName, name: "servicecidrs", list: &networkingv1.ServiceCIDRList{},
		}, &networkingv1.ServiceCIDR{}, source.NewServiceCIDRConfig(h)),
		watchKind(ctx, s.contacts, &resource{
			client: s.client, name: "services", list: &v1.ServiceList{},
			labels: "!" + source.LabelServiceProxyName,
			fields: fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String(),
		}, &v1.Service{}, source.NewServiceConfig(h)),
		watchKind(ctx, s.contacts, &resource{
			client: s.client, group: discoveryv1.GroupName, name: "endpointslices", list: &discoveryv1.EndpointSliceList{},
			labels: "!" + source.LabelHeadless,
		}, &discoveryv1.EndpointSlice{}, source.NewEndpointSliceConfig(h)),
	}
}

// kindWatch is the watch of one kind.
type kindWatch struct {
	reflector *cache.Reflector
	errors    *watchErrors
	listed    <-chan struct{} // closed when the first list has been passed on
	synced    func()
}

func watchKind[T source.Object](ctx context.Context, contacts *Contacts, r *resource, example T, to *source.Config[T]) *kindWatch {
	c := contacts.of(r.name)
	return newKindWatch(newStore(ctx, to, c), example, r, &watchErrors{resource: r.name, group: r.group, contact: c})
}

func newKindWatch[T source.Object](to *store[T], example T, from listerWatcher, errors *watchErrors) *kindWatch {
	log := klog.FromContext(to.ctx)
	options := cache.ReflectorOptions{Logger: &log, Name: errors.resource}
	lw := cache.ToListWatcherWithWatchListSemantics(listWatch(from, errors), from)
	return &kindWatch{cache.NewReflectorWithOptions(lw, example, to, options), errors, to.listed, to.to.Synced}
}

// run lists and watches until ctx ends, with a back-off while that fails.
func (w *kindWatch) run(ctx context.Context) {
	next, nextUnreachable := newBackoff(retryMax), newBackoff(unreachableMax)
	for ctx.Err() == nil {
		w.errors.reset()
		err := w.reflector.ListAndWatchWithContext(ctx)
		if err != nil {
			w.errors.handle(ctx, err)
		}
		pause := next
		if unreachable(err) {
			pause = nextUnreachable
		}
		d := pause()
		w.errors.contact.retryIn(d)
		_ = sleep(ctx, d) // The loop checks ctx.
	}
}

// waitForSync reports when the first list has been passed on, and logs from time to time
// that it has not: a server that hangs returns no error that could be logged.
func (w *kindWatch) waitForSync(ctx context.Context) {
	for pause := firstWarning; ; pause = logInterval {
		select {
		case <-w.listed:
			if ctx.Err() == nil {
				w.synced()
			}
			return
		case <-ctx.Done():
			return
		case <-time.After(pause):
			klog.FromContext(ctx).Info("Still waiting for objects, the API server has not sent the whole list",
				"resource", w.errors.resource)
		}
	}
}
