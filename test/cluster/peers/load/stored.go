package load

import (
	"bytes"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/peers/figures"
)

// stored returns Services from a number on, their EndpointSlices and the claims
// on their ClusterIPs, as the API server keeps them.
func stored(from int, to figures.Size, affinity bool) ([]controlplane.Entry, error) {
	var out []controlplane.Entry
	for i := from; i < to.Services; i++ {
		svc, slice, ip := serviceObject(i), sliceObject(i, first(to.Endpoints)...), addressObject(i)
		if affinity {
			svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = v1.ServiceAffinityClientIP, threeHours()
		}
		svc.TypeMeta = metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "Service"}
		slice.TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		ip.TypeMeta = metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"}
		for _, x := range []struct {
			folder string
			object runtime.Object
			meta   *metav1.ObjectMeta
		}{
			{"services/specs/" + Namespace + "/", svc, &svc.ObjectMeta},
			{"endpointslices/" + Namespace + "/", slice, &slice.ObjectMeta},
			{"ipaddresses/", ip, &ip.ObjectMeta},
		} {
			e, err := entry(x.folder, x.object, x.meta)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
	}
	return out, nil
}

// threeHours is the API server's default.
func threeHours() *v1.SessionAffinityConfig {
	seconds := int32(3 * time.Hour / time.Second)
	return &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

// entry gives an object what the API server gives to new ones, and encodes it.
func entry(folder string, object runtime.Object, meta *metav1.ObjectMeta) (controlplane.Entry, error) {
	meta.UID, meta.Generation = uuid.NewUUID(), 1
	meta.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &b); err != nil {
		return controlplane.Entry{}, fmt.Errorf("encode %s: %w", meta.Name, err)
	}
	return controlplane.Entry{Key: folder + meta.Name, Value: b.Bytes()}, nil
}

// addressObject is the claim of a Service on its ClusterIP.
func addressObject(service int) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ClusterIP(service).String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(v1.IPv4Protocol),
			networkingv1.LabelManagedBy:       "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: Namespace, Name: name(service),
		}},
	}
}
