// Command watcher only watches EndpointSlices and throws away what it hears:
// what that costs, no proxy can do without. Its argument is a kubeconfig.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := watch(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func watch(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, a kubeconfig, not %d", len(args))
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.DisableCompression = true
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	w, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	defer w.Stop()
	fmt.Println("watching")
	for range w.ResultChan() {
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watch EndpointSlices: the API server ended it")
	}
	return nil
}
