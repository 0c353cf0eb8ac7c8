package apiclient

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// New returns a client for version v1 of the groups core, discovery, networking and
// events. All requests share one connection and one rate limit. A request selects its
// group with AbsPath and [Path].
func New(cfg *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/api", &v1.SchemeGroupVersion
	cfg.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	return rest.RESTClientFor(cfg)
}

// Path returns the path of version v1 of a group. The core group has an empty name.
func Path(group string) string {
	if group == "" {
		return "/api/v1"
	}
	return "/apis/" + group + "/v1"
}
