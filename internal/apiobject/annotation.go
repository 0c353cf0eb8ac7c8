package apiobject

import (
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

// The annotations that are used. Without them, or if their values are invalid, objects
// are treated as kube-proxy does.
const (
	LoadBalancing = "sluice.dev/load-balancing" // of a Service: the load-balancing method
	Weight        = "sluice.dev/weight"         // of an EndpointSlice: the weight of each of its endpoints

	// PreserveDestination is an annotation of kube-proxy, for Services on Windows. If it
	// is "true", connections to LoadBalancer addresses reach endpoints on this node with
	// the original source and destination addresses.
	PreserveDestination = "preserve-destination"
)

// AnnotationField returns the path of an annotation.
func AnnotationField(name string) string { return "metadata.annotations." + name }

func (p *parser) balancing(obj metav1.Object) proxy.Balancing {
	text, ok := obj.GetAnnotations()[LoadBalancing]
	if !ok {
		return proxy.BalanceDefault
	}
	b, err := proxy.ParseBalancing(text)
	if err != nil {
		p.add(Omitted, field(AnnotationField(LoadBalancing)), "%v; the annotation is ignored", err)
	}
	return b
}

// weight parses the weight. It returns 0, which counts as 1, if it is 1, invalid or not set.
func (p *parser) weight(obj metav1.Object) uint16 {
	text, ok := obj.GetAnnotations()[Weight]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil || n == 0:
		p.add(Omitted, field(AnnotationField(Weight)), "%.60q is not a weight (1 to 65535); each endpoint counts as 1", text)
		return 0
	case n == 1:
		return 0
	}
	return uint16(n)
}

// omitAnnotation removes an annotation from an object if there is a problem with it.
func omitAnnotation(obj metav1.Object, name string, problems []Problem) {
	if slices.ContainsFunc(problems, func(p Problem) bool { return p.Field == AnnotationField(name) }) {
		delete(obj.GetAnnotations(), name)
	}
}
