package apiclient_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"sluice/internal/apiclient"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// answer serves one object in protobuf and records the request.
type answer struct {
	object  runtime.Object
	code    int
	request *http.Request
	sent    runtime.Object // what the request brought
}

func (a *answer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.request = r
	scheme := runtime.NewScheme()
	codec := protobuf.NewSerializer(scheme, scheme)
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		event := &eventsv1.Event{}
		_, kind, err := codec.Decode(body, nil, event)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		event.SetGroupVersionKind(*kind)
		a.sent = event
	}
	w.Header().Set("Content-Type", protobufType)
	w.WriteHeader(a.code)
	_ = codec.Encode(a.object, w)
}

func dial(t *testing.T, a *answer) *rest.RESTClient {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	c, err := apiclient.New(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		ContentType: protobufType, AcceptContentTypes: protobufType + ",application/json",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// typed sets the kind of an object, which protobuf encodes beside the object.
func typed(o runtime.Object, group, kind string) runtime.Object {
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	return o
}

func TestLists(t *testing.T) {
	meta := metav1.ListMeta{ResourceVersion: "7"}
	named := metav1.ObjectMeta{Name: "one"}
	tests := []struct {
		group, resource, path string
		object, into          runtime.Object
	}{
		{
			"", "services", "/api/v1/services",
			typed(&v1.ServiceList{ListMeta: meta, Items: []v1.Service{{ObjectMeta: named}}}, "", "ServiceList"), &v1.ServiceList{},
		},
		{
			"discovery.k8s.io", "endpointslices", "/apis/discovery.k8s.io/v1/endpointslices",
			typed(&discoveryv1.EndpointSliceList{ListMeta: meta, Items: []discoveryv1.EndpointSlice{{ObjectMeta: named}}},
				"discovery.k8s.io", "EndpointSliceList"), &discoveryv1.EndpointSliceList{},
		},
		{
			"networking.k8s.io", "servicecidrs", "/apis/networking.k8s.io/v1/servicecidrs",
			typed(&networkingv1.ServiceCIDRList{ListMeta: meta, Items: []networkingv1.ServiceCIDR{{ObjectMeta: named}}},
				"networking.k8s.io", "ServiceCIDRList"), &networkingv1.ServiceCIDRList{},
		},
	}
	for _, tt := range tests {
		t.Run(tt.resource, func(t *testing.T) {
			a := &answer{object: tt.object, code: http.StatusOK}
			err := dial(t, a).Get().AbsPath(apiclient.Path(tt.group)).Resource(tt.resource).Do(t.Context()).Into(tt.into)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.request.URL.Path; got != tt.path {
				t.Errorf("asked at %q, want %q", got, tt.path)
			}
			if got, want := a.request.Header.Get("Accept"), protobufType+",application/json"; got != want {
				t.Errorf("asked for %q, want %q", got, want)
			}
			tt.object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // a decoded list has none
			if diff := cmp.Diff(tt.object, tt.into); diff != "" {
				t.Errorf("list mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPostOfAnotherGroup posts an object of a group other than the client's default.
func TestPostOfAnotherGroup(t *testing.T) {
	a := &answer{object: typed(&eventsv1.Event{}, "events.k8s.io", "Event"), code: http.StatusCreated}
	err := dial(t, a).Post().AbsPath(apiclient.Path(eventsv1.GroupName)).Namespace("default").Resource("events").
		Body(&eventsv1.Event{Reason: "Starting"}).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	want := typed(&eventsv1.Event{Reason: "Starting"}, "events.k8s.io", "Event")
	if diff := cmp.Diff(want, a.sent); diff != "" {
		t.Errorf("event mismatch (-want +got):\n%s", diff)
	}
	if got := a.request.Header.Get("Content-Type"); got != protobufType {
		t.Errorf("sent as %q", got)
	}
}

func TestRefusals(t *testing.T) {
	status := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
	a := &answer{object: typed(status, "", "Status"), code: http.StatusForbidden}
	err := dial(t, a).Get().AbsPath(apiclient.Path("")).Resource("nodes").Do(t.Context()).Into(&v1.NodeList{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want that it is forbidden", err)
	}
}
