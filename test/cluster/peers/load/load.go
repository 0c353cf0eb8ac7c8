package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice/test/cluster/peers/figures"
)

// writers is how many objects are written at once.
const writers = 24

// Load is what an API server was filled with.
type Load struct {
	Client kubernetes.Interface
	Size   figures.Size // so far; the zero value: empty

	say    func(line string)
	probes int // changes of the Service Probe so far
	churns int // changes of other Services so far
}

// New prepares an API server to be filled, by an administrator.
func New(ctx context.Context, admin *rest.Config, say func(string)) (*Load, error) {
	cfg := Protobuf(admin)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	l := &Load{Client: client, say: say}
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
	err := l.parallel(ctx, s.Services-from, func(ctx context.Context, i int) error {
		return l.create(ctx, from+i, first(s.Endpoints)...)
	})
	if err != nil {
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
	err = l.parallel(ctx, len(list.Items), func(ctx context.Context, i int) error {
		return api.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{})
	})
	if err != nil {
		return fmt.Errorf("delete Services: %w", err)
	}
	l.Size = figures.Size{}
	slices := l.Client.DiscoveryV1().EndpointSlices(Namespace)
	if err := slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete EndpointSlices: %w", err)
	}
	return nil
}

// parallel calls f for all numbers below n, many at a time, until one fails. It
// says how far it is.
func (l *Load) parallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	const every = 5 * time.Second
	var next atomic.Int64
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return context.Cause(ctx)
		case <-tick.C:
			l.say(fmt.Sprintf("%d of %d Services", min(int(next.Load()), n), n))
		}
	}
}
