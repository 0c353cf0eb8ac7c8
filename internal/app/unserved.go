package app

import (
	"context"
	"net/netip"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"

	"sluice/internal/apiclient"
	"sluice/internal/explain"
	"sluice/internal/source/manifest"
)

// unservedTime is how long the API server may take to tell of a Service.
const unservedTime = 3 * time.Second

// unserved looks for Services that this proxy does not serve, by the name or the
// address that somebody asks about. They are not watched, so they are asked for
// when it matters. Nil: it cannot be known.
func (s objectSource) unserved(ctx context.Context, to string) []explain.Unserved {
	if s.manifests != "" {
		objects, _, err := manifest.Load(s.manifests)
		if err != nil {
			return nil
		}
		return unserved(objects)
	}
	request := s.client.Get().AbsPath(apiclient.Path("")).Resource("services").Param("limit", "10")
	name, _, _ := strings.Cut(to, ":")
	namespace, name, named := strings.Cut(name, "/")
	at, err := netip.ParseAddrPort(to)
	switch {
	case err == nil:
		request = request.Param("fieldSelector", fields.OneTermEqualSelector("spec.clusterIP", at.Addr().String()).String())
	case named:
		request = request.Namespace(namespace).Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, name).String())
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unservedTime)
	defer cancel()
	var list v1.ServiceList
	if err := request.Do(ctx).Into(&list); err != nil {
		klog.FromContext(ctx).V(2).Info("The API server does not tell of a Service that is not served", "asked", to, "err", err)
		return nil
	}
	objects := make([]metav1.Object, 0, len(list.Items))
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return unserved(objects)
}
