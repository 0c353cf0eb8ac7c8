package apiserver_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice/internal/apiclient"
	"sluice/internal/source/informer"
	"sluice/internal/source/sourcetest"
	"sluice/test/cluster/apiserver"
)

func service(name string, labels map[string]string) *v1.Service {
	both := v1.IPFamilyPolicyRequireDualStack
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "test", Labels: labels},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeNodePort, IPFamilyPolicy: &both, Ports: []v1.ServicePort{{Port: 80}}},
	}
}

// start returns a client of a new server.
func start(t *testing.T, form string) (*rest.Config, *kubernetes.Clientset) {
	t.Helper()
	s := httptest.NewServer(apiserver.New([]netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112"),
	}))
	t.Cleanup(s.Close)
	cfg := &rest.Config{Host: s.URL, QPS: -1}
	cfg.ContentType = form
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, client
}

// TestInformer lets the daemon's own source read what a client writes, in both
// forms: what was there before, and what happens then.
func TestInformer(t *testing.T) {
	for _, form := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(form, func(t *testing.T) {
			cfg, client := start(t, form)
			create := metav1.CreateOptions{}
			nodes, services, api := client.CoreV1().Nodes(), client.CoreV1().Services("test"), client.DiscoveryV1().EndpointSlices("test")
			must := func(_ any, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, create))
			must(nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, create))
			web, err := services.Create(t.Context(), service("web", nil), create)
			must(web, err)
			must(services.Create(t.Context(), service("others", map[string]string{"service.kubernetes.io/service-proxy-name": "x"}), create))

			reader, err := apiclient.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h, ended := &sourcetest.Recorder{}, make(chan error)
			go func() { ended <- informer.New(reader, "node-1", &informer.Contacts{}).Run(ctx, h) }()
			h.WantInAnyOrder(t, "+node node-1", "+svc web "+web.Spec.ClusterIP+":80", "synced svc", "synced slice", "synced node", "synced cidr")

			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "test"}, AddressType: discoveryv1.AddressTypeIPv4,
			}
			_, err = api.Update(t.Context(), slice, metav1.UpdateOptions{})
			if !apierrors.IsNotFound(err) {
				t.Errorf("update what is not there: %v", err)
			}
			must(api.Create(t.Context(), slice, create))
			h.Want(t, "+slice web-1")
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
			must(api.Update(t.Context(), slice, metav1.UpdateOptions{}))
			h.Want(t, "~slice web-1")
			_, err = services.Create(t.Context(), service("web", nil), create)
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("create what is there: %v", err)
			}
			must(nil, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
			h.Want(t, "-svc web "+web.Spec.ClusterIP+":80")
			cancel()
			must(nil, <-ended)
		})
	}
}

// TestWatchFromVersion hears of what happened between a list and the watch that
// follows it.
func TestWatchFromVersion(t *testing.T) {
	_, client := start(t, runtime.ContentTypeJSON)
	services := client.CoreV1().Services("test")
	list, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if _, err := services.Create(t.Context(), service(name, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []string{"one", "two"} {
		e := <-w.ResultChan()
		if svc, ok := e.Object.(*v1.Service); !ok || svc.Name != want {
			t.Fatalf("watched %v %v, want %s", e.Type, e.Object, want)
		}
	}
}

// TestServiceIsCompleted finds addresses and ports that nobody else has.
func TestServiceIsCompleted(t *testing.T) {
	_, client := start(t, runtime.ContentTypeJSON)
	seen := map[string]bool{}
	for i := range 3 {
		svc, err := client.CoreV1().Services("test").Create(t.Context(), service(fmt.Sprint("web-", i), nil), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append(svc.Spec.ClusterIPs, fmt.Sprint(svc.Spec.Ports[0].NodePort)) {
			if seen[x] || x == "0" {
				t.Errorf("%s is another's, or nobody's", x)
			}
			seen[x] = true
		}
		if got := svc.Spec.ClusterIPs; len(got) != 2 || !strings.HasPrefix(got[0], "10.96.") || !strings.HasPrefix(got[1], "fd00:96::") {
			t.Errorf("ClusterIPs %v, want one of each family", got)
		}
	}
}
