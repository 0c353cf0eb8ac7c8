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
	"k8s.io/apimachinery/pkg/runtime"
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

// feed is one watched kind, wired up and not yet started.
type feed struct {
	informer cache.Controller
	errors   *watchErrors
	synced   func()
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
				"resource", f.errors.resource)
		}
	}
}

// feeds lists the four kinds, the Node first: it is one object, and everything
// that depends on the node is then decided once.
func (s *apiServer) feeds(ctx context.Context, h source.Handler) []*feed {
	return []*feed{s.nodes(ctx, h), s.serviceCIDRs(ctx, h), s.services(ctx, h), s.endpointSlices(ctx, h)}
}

func (s *apiServer) services(ctx context.Context, h source.ServiceHandler) *feed {
	config := source.NewServiceConfig()
	config.RegisterEventHandler(h)
	errors := &watchErrors{resource: "services"}
	lw := listWatch(s.objects(errors, func() runtime.Object { return &v1.ServiceList{} }), errors, selectors{
		labels: "!" + source.LabelServiceProxyName,
		fields: fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String(),
	})
	return s.feed(lw, &v1.Service{}, newMirror(ctx, config, func(m metav1.ObjectMeta) *v1.Service {
		return &v1.Service{ObjectMeta: m}
	}), errors, config.Synced)
}

func (s *apiServer) endpointSlices(ctx context.Context, h source.EndpointSliceHandler) *feed {
	config := source.NewEndpointSliceConfig()
	config.RegisterEventHandler(h)
	errors := &watchErrors{resource: "endpointslices", group: discoveryv1.GroupName}
	lw := listWatch(s.objects(errors, func() runtime.Object { return &discoveryv1.EndpointSliceList{} }), errors, selectors{
		labels: "!" + source.LabelHeadless,
	})
	return s.feed(lw, &discoveryv1.EndpointSlice{}, newMirror(ctx, config, func(m metav1.ObjectMeta) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: m}
	}), errors, config.Synced)
}

func (s *apiServer) nodes(ctx context.Context, h source.NodeHandler) *feed {
	config := source.NewNodeConfig(s.settings.NodeName)
	config.RegisterEventHandler(h)
	errors := &watchErrors{resource: "nodes"}
	lw := listWatch(s.objects(errors, func() runtime.Object { return &v1.NodeList{} }), errors, selectors{
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.settings.NodeName).String(),
	})
	return s.feed(lw, &v1.Node{}, newMirror(ctx, config, func(m metav1.ObjectMeta) *v1.Node {
		return &v1.Node{ObjectMeta: m}
	}), errors, config.Synced)
}

func (s *apiServer) serviceCIDRs(ctx context.Context, h source.ServiceCIDRHandler) *feed {
	config := source.NewServiceCIDRConfig()
	config.RegisterEventHandler(h)
	errors := &watchErrors{resource: "servicecidrs", group: networkingv1.GroupName}
	lw := listWatch(s.objects(errors, func() runtime.Object { return &networkingv1.ServiceCIDRList{} }), errors, selectors{})
	return s.feed(lw, &networkingv1.ServiceCIDR{}, newMirror(ctx, config, func(m metav1.ObjectMeta) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: m}
	}), errors, config.Synced)
}

func (s *apiServer) feed(lw *cache.ListWatch, example runtime.Object, to cache.Queue, errors *watchErrors, synced func()) *feed {
	return &feed{errors: errors, synced: synced, informer: cache.New(&cache.Config{
		Queue:                        to,
		ListerWatcher:                cache.ToListWatcherWithWatchListSemantics(lw, s.client),
		ObjectType:                   example,
		WatchErrorHandlerWithContext: errors.handle,
	})}
}
