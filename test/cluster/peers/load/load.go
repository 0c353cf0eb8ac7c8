package load

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/peers/figures"
)

// Load is what an API server was filled with.
type Load struct {
	Client   kubernetes.Interface
	Size     figures.Size // so far; the zero value: empty
	Affinity bool         // Services that are added have session affinity

	store  *controlplane.ControlPlane
	say    func(line string)
	probes int // changes of the Service Probe so far
	churns int // changes of other Services so far
}

// New prepares the API server of a control plane to be filled.
func New(ctx context.Context, cp *controlplane.ControlPlane, say func(string)) (*Load, error) {
	client, err := kubernetes.NewForConfig(Protobuf(cp.Admin))
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	l := &Load{Client: client, store: cp, say: say}
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	if err := l.create(ctx, Probe, 0); err != nil {
		return nil, err
	}
	return l, l.create(ctx, Data, first(dataEndpoints)...)
}

// Protobuf returns the configuration of a client that speaks as proxies do.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return cfg
}

// Fits reports whether the load can grow to a size.
func (l *Load) Fits(s figures.Size) bool {
	return l.Size.Services == 0 || l.Size.Endpoints == s.Endpoints && l.Size.Services <= s.Services
}

// Grow adds Services until there are as many as wanted.
func (l *Load) Grow(ctx context.Context, s figures.Size) error {
	if !l.Fits(s) || s.Services > MaxServices || s.Endpoints >= stride {
		return fmt.Errorf("grow from %v to %v: impossible", l.Size, s)
	}
	began, from := time.Now(), l.Size.Services
	if from == s.Services {
		return nil
	}
	objects, err := stored(from, s, l.Affinity)
	if err != nil {
		return err
	}
	l.say(fmt.Sprintf("writing %d objects", len(objects)))
	// The API server hears of nothing while it is away, so its parts cannot
	// find one object without the other and begin to repair that.
	l.store.KillAPIServer()
	if err := l.store.Put(ctx, objects); err != nil {
		return err
	}
	if err := l.store.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := l.await(ctx, s.Services); err != nil {
		return err
	}
	l.Size = s
	l.say(fmt.Sprintf("loaded %v in %.1f s", s, time.Since(began).Seconds()))
	return nil
}

// create writes a Service and its EndpointSlice.
func (l *Load) create(ctx context.Context, service int, numbers ...int) error {
	svc := serviceObject(service)
	if _, err := l.Client.CoreV1().Services(Namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Service %s: %w", svc.Name, err)
	}
	slice := sliceObject(service, numbers...)
	if _, err := l.Client.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create EndpointSlice %s: %w", slice.Name, err)
	}
	return nil
}

// update replaces the endpoints of a Service by these of its addresses.
func (l *Load) update(ctx context.Context, service int, numbers ...int) error {
	slice := sliceObject(service, numbers...)
	// The controller says when the first of the changes happened that it sums up.
	slice.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	if _, err := l.Client.DiscoveryV1().EndpointSlices(Namespace).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", slice.Name, err)
	}
	return nil
}

// Clear deletes everything that was created; the namespace stays.
func (l *Load) Clear(ctx context.Context) error {
	api := l.Client.CoreV1().Services(Namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for i := range list.Items {
		if err := api.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete Service %s: %w", list.Items[i].Name, err)
		}
	}
	l.Size = figures.Size{}
	slices := l.Client.DiscoveryV1().EndpointSlices(Namespace)
	if err := slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete EndpointSlices: %w", err)
	}
	return nil
}

// await waits until the API server has as many Services as wanted, each with an
// EndpointSlice, beside our own.
func (l *Load) await(ctx context.Context, want int) error {
	const pause, patience = 200 * time.Millisecond, time.Minute
	for began := time.Now(); ; time.Sleep(pause) {
		n, err := l.count(ctx)
		if err == nil && n == want {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it has %d", n)
		}
		if time.Since(began) > patience {
			return fmt.Errorf("wait %v for the API server to have %d Services: %w", patience, want, err)
		}
	}
}

// count returns how many Services the API server has an EndpointSlice of.
func (l *Load) count(ctx context.Context) (int, error) {
	cached := metav1.ListOptions{ResourceVersion: "0"} // what it knows without asking etcd
	list, err := l.Client.CoreV1().Services(Namespace).List(ctx, cached)
	if err != nil {
		return 0, fmt.Errorf("list Services: %w", err)
	}
	slices, err := l.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, cached)
	if err != nil {
		return 0, fmt.Errorf("list EndpointSlices: %w", err)
	}
	return min(len(list.Items), len(slices.Items)) - own, nil
}
