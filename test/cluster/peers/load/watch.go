package load

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Watch watches EndpointSlices and discards the events until ctx ends. No proxy can cost less.
func Watch(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.DisableCompression = true
	client, err := kubernetes.NewForConfig(Protobuf(cfg))
	if err != nil {
		return err
	}
	w, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	defer w.Stop()
	for range w.ResultChan() {
	}
	if ctx.Err() == nil {
		return errors.New("watch EndpointSlices: the API server ended it")
	}
	return nil
}
