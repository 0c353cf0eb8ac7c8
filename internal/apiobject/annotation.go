package apiobject

import (
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

// The annotations that are read. Without the one of its kind, or with one that
// cannot be used, an object is what it would be to kube-proxy.
const (
	LoadBalancing = "sluice.dev/load-balancing" // of a Service: how an endpoint is chosen
	Weight        = "sluice.dev/weight"         // of an EndpointSlice: how much each of its endpoints counts

	// PreserveDestination is kube-proxy's own, of a Service on Windows: "true" has
	// connections to its load-balancer addresses come to endpoints of this node as
	// they were made, with the client's address and the destination's.
	PreserveDestination = "preserve-destination"
)

// AnnotationField returns the field that an annotation is.
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

// weight returns 0 where nothing else than 1 is said.
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

// omitAnnotation takes an annotation out of an object if a problem omits it.
func omitAnnotation(obj metav1.Object, name string, problems []Problem) {
	if slices.ContainsFunc(problems, func(p Problem) bool { return p.Field == AnnotationField(name) }) {
		delete(obj.GetAnnotations(), name)
	}
}
