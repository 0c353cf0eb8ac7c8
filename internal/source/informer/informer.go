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

// New returns the Source that watches the API server behind client, which is one
// of package apiclient. Of Nodes it watches the one of this name.
func New(client rest.Interface, nodeName string) source.Source {
	return &apiServer{client, nodeName}
}

type apiServer struct {
	client   rest.Interface
	nodeName string
}

// Run implements [source.Source].
func (s *apiServer) Run(ctx context.Context, h source.Handler) error {
	// The children end with Run even when it returns early.
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	for _, f := range s.feeds(ctx, h) {
		running.Go(func() { f.run(ctx) })
		running.Go(func() { f.await(ctx) })
	}
	<-ctx.Done()
	return nil
}

// feeds lists the four kinds, the Node first: it is one object, and everything
// that depends on the node is then decided once.
func (s *apiServer) feeds(ctx context.Context, h source.Handler) []*feed {
	return []*feed{
		feedOf(ctx, &resource{
			client: s.client, name: "nodes", list: &v1.NodeList{},
			fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.nodeName).String(),
		}, &v1.Node{}, source.NewNodeConfig(s.nodeName, h)),
		feedOf(ctx, &resource{
			client: s.client, group: networkingv1.GroupName, name: "servicecidrs", list: &networkingv1.ServiceCIDRList{},
		}, &networkingv1.ServiceCIDR{}, source.NewServiceCIDRConfig(h)),
		feedOf(ctx, &resource{
			client: s.client, name: "services", list: &v1.ServiceList{},
			labels: "!" + source.LabelServiceProxyName,
			fields: fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String(),
		}, &v1.Service{}, source.NewServiceConfig(h)),
		feedOf(ctx, &resource{
			client: s.client, group: discoveryv1.GroupName, name: "endpointslices", list: &discoveryv1.EndpointSliceList{},
			labels: "!" + source.LabelHeadless,
		}, &discoveryv1.EndpointSlice{}, source.NewEndpointSliceConfig(h)),
	}
}

// feed is one watched kind.
type feed struct {
	reflector *cache.Reflector
	errors    *watchErrors
	whole     <-chan struct{} // closed when all objects there were have been passed on
	synced    func()
}

func feedOf[T source.Object](ctx context.Context, r *resource, example T, to *source.Config[T]) *feed {
	return newFeed(newStore(ctx, to), example, r, &watchErrors{resource: r.name, group: r.group})
}

func newFeed[T source.Object](to *store[T], example T, from listerWatcher, errors *watchErrors) *feed {
	log := klog.FromContext(to.ctx)
	options := cache.ReflectorOptions{Logger: &log, Name: errors.resource}
	lw := cache.ToListWatcherWithWatchListSemantics(listWatch(from, errors), from)
	return &feed{cache.NewReflectorWithOptions(lw, example, to, options), errors, to.whole, to.to.Synced}
}

// run lists and watches until ctx ends, with growing pauses while that fails.
func (f *feed) run(ctx context.Context) {
	next, nextAway := pauses(retryMax), pauses(awayMax)
	for ctx.Err() == nil {
		f.errors.begin()
		err := f.reflector.ListAndWatchWithContext(ctx)
		if err != nil {
			f.errors.handle(ctx, err)
		}
		pause := next
		if away(err) {
			pause = nextAway
		}
		_ = sleep(ctx, pause()) // the loop asks, too
	}
}

// await says when all objects have come, and now and then that they have not: a
// server that hangs gives no error to report.
func (f *feed) await(ctx context.Context) {
	for pause := firstComplaint; ; pause = repeatAfter {
		select {
		case <-f.whole:
			if ctx.Err() == nil {
				f.synced()
			}
			return
		case <-ctx.Done():
			return
		case <-time.After(pause):
			klog.FromContext(ctx).Info("Objects have not come yet, the API server has not answered with all of them",
				"resource", f.errors.resource)
		}
	}
}
