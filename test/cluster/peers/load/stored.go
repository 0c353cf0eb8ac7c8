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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"sluice/test/cluster/controlplane"
	"sluice/test/cluster/peers/figures"
)

// stored returns Services, their EndpointSlices and the IPAddresses of their ClusterIPs, in the API
// server's storage encoding.
func stored(size figures.Size, affinity bool) ([]controlplane.Entry, error) {
	var s store
	s.add(Probe, 1, false)
	s.add(Data, dataEndpoints, false)
	for i := range size.Services {
		s.add(i, size.Endpoints, affinity)
	}
	return s.entries, s.err
}

// store collects entries and keeps the first error.
type store struct {
	entries []controlplane.Entry
	err     error
}

// add adds the objects of one Service.
func (s *store) add(service, endpoints int, affinity bool) {
	svc := serviceObject(service)
	if affinity {
		seconds := int32(3 * time.Hour / time.Second) // the API server's default
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	s.put("services/specs/"+Namespace+"/", v1.SchemeGroupVersion.WithKind("Service"), svc)
	s.put("endpointslices/"+Namespace+"/", discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), sliceObject(service, numbersBelow(endpoints)...))
	s.put("ipaddresses/", networkingv1.SchemeGroupVersion.WithKind("IPAddress"), addressObject(service))
}

// put sets the fields that the API server sets on new objects, and encodes the object.
func (s *store) put(folder string, kind schema.GroupVersionKind, object object) {
	object.GetObjectKind().SetGroupVersionKind(kind)
	object.SetUID(uuid.NewUUID())
	object.SetGeneration(1)
	object.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &b); err != nil && s.err == nil {
		s.err = fmt.Errorf("encode %s: %w", object.GetName(), err)
	}
	s.entries = append(s.entries, controlplane.Entry{Key: folder + object.GetName(), Value: b.Bytes()})
}

type object interface {
	runtime.Object
	metav1.Object
}

// addressObject returns the IPAddress that reserves the ClusterIP of a Service.
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
