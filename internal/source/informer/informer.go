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

// Settings says what to watch and how.
type Settings struct {
	// NodeName names the only Node that is watched.
	NodeName string
}

// New returns the Source that watches the API server behind client, which is one
// of package apiclient.
func New(client rest.Interface, s Settings) source.Source {
	return &apiServer{client: client, settings: s}
}

type apiServer struct {
	client   rest.Interface
	settings Settings
}

// Run implements [source.Source].
func (s *apiServer) Run(ctx context.Context, h source.Handler) error {
	// The children end with Run even when it returns early.
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	for _, f := range s.feeds(ctx, h) {
		running.Go(func() { f.informer.RunWithContext(ctx) })
		running.Go(func() {
			if f.await(ctx, f.informer.HasSyncedChecker().Done()) {
				f.synced()
			}
		})
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
			fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.settings.NodeName).String(),
		}, &v1.Node{}, source.NewNodeConfig(s.settings.NodeName, h)),
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

// feed is one watched kind, wired up and not yet started.
type feed struct {
	resource string
	informer cache.Controller
	synced   func()
}

func feedOf[T source.Object](ctx context.Context, r *resource, example T, to *source.Config[T]) *feed {
	return newFeed(newQueue(ctx, to), example, r, &watchErrors{resource: r.name, group: r.group})
}

func newFeed[T source.Object](to *queue[T], example T, from listerWatcher, errors *watchErrors) *feed {
	return &feed{resource: errors.resource, synced: to.to.Synced, informer: cache.New(&cache.Config{
		Queue:                        to,
		ListerWatcher:                cache.ToListWatcherWithWatchListSemantics(listWatch(from, errors), from),
		ObjectType:                   example,
		WatchErrorHandlerWithContext: errors.handle,
	})}
}

// await waits until all objects have come, and says now and then that they have
// not: a server that hangs gives no error to report.
func (f *feed) await(ctx context.Context, come <-chan struct{}) bool {
	for pause := firstComplaint; ; pause = repeatAfter {
		select {
		case <-come:
			return ctx.Err() == nil
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			klog.FromContext(ctx).Info("Objects have not come yet, the API server has not answered with all of them",
				"resource", f.resource)
		}
	}
}
