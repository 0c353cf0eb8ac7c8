// Package load fills an API server with Services and EndpointSlices and changes them at a given
// rate, as the controllers of a busy cluster would.
//
// Every address is computed from a number, so the endpoints of a Service need not be stored. The
// package knows nothing of proxies.
package load

import (
	"context"
	"errors"
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

// Load is the content of an API server.
type Load struct {
	Client kubernetes.Interface
	Size   figures.Size

	probes int // changes of the Service Probe so far
	churns int // changes of other Services so far
}

// New fills the API server of a control plane with Services, optionally with session affinity, and
// with Probe and Data.
func New(ctx context.Context, cp *controlplane.ControlPlane, size figures.Size, affinity bool) (*Load, error) {
	if size.Services > MaxServices || size.Endpoints >= stride {
		return nil, fmt.Errorf("load %v: at most %d Services and %d endpoints of each", size, MaxServices, stride-1)
	}
	client, err := kubernetes.NewForConfig(Protobuf(cp.Admin))
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	objects, err := stored(size, affinity)
	if err != nil {
		return nil, err
	}
	if err := cp.Put(ctx, objects); err != nil {
		return nil, err
	}
	l := &Load{Client: client, Size: size}
	return l, l.waitListed(ctx, size.Services+own)
}

// Protobuf returns a client configuration that uses protobuf, as proxies do.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return cfg
}

// update sets the endpoints of a Service to those with these numbers.
func (l *Load) update(ctx context.Context, service int, numbers ...int) error {
	slice := sliceObject(service, numbers...)
	// The endpoint slice controller sets the time of the first change in a slice.
	slice.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	if _, err := l.Client.DiscoveryV1().EndpointSlices(Namespace).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", slice.Name, err)
	}
	return nil
}

// waitListed waits until the API server's cache has as many Services as wanted, each with an
// EndpointSlice.
func (l *Load) waitListed(ctx context.Context, want int) error {
	const pause, limit = 200 * time.Millisecond, time.Minute
	cached := metav1.ListOptions{ResourceVersion: "0"}
	for began := time.Now(); ; time.Sleep(pause) {
		services, err := l.Client.CoreV1().Services(Namespace).List(ctx, cached)
		slices, err2 := l.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, cached)
		if err = errors.Join(err, err2); err == nil {
			if len(services.Items) == want && len(slices.Items) == want {
				return nil
			}
			err = fmt.Errorf("it has %d with %d EndpointSlices", len(services.Items), len(slices.Items))
		}
		if time.Since(began) > limit {
			return fmt.Errorf("wait %v for the API server to have %d Services: %w", limit, want, err)
		}
	}
}
