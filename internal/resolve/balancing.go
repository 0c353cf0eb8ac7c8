package resolve

import (
	"fmt"
	"slices"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// Balancing is what the mode supports to choose endpoints, and the configured default.
// Rows never require what the mode does not support. The zero value supports every
// method and weights, but not preserve-destination.
type Balancing struct {
	Mode       string            // the name of the mode
	Methods    []proxy.Balancing // the methods that the mode supports; nil means all
	Unweighted bool              // the mode does not support weights
	Cluster    proxy.Balancing   // the method of Services that do not select one
	Preserves  bool              // the mode supports the annotation preserve-destination
}

// method returns the method for a Service that selects one, and appends a problem if
// the mode does not support that.
func (b *Balancing) method(selected proxy.Balancing, problems []apiobject.Problem) (proxy.Balancing, []apiobject.Problem) {
	switch {
	case selected == proxy.BalanceDefault:
		return b.Cluster, problems
	case b.Methods == nil || slices.Contains(b.Methods, selected):
		return selected, problems
	}
	return b.Cluster, append(problems, apiobject.Problem{
		Field: apiobject.AnnotationField(apiobject.LoadBalancing),
		Reason: fmt.Sprintf("mode %s does not support %v, only %s; the annotation is ignored",
			b.Mode, selected, proxy.BalancingWords(b.Methods)),
	})
}

// weight returns the weight for a slice that sets one, and appends a problem if the
// mode does not support weights.
func (b *Balancing) weight(set uint16, problems []apiobject.Problem) (uint16, []apiobject.Problem) {
	if set == 0 || !b.Unweighted {
		return set, problems
	}
	return 0, append(problems, apiobject.Problem{
		Field:  apiobject.AnnotationField(apiobject.Weight),
		Reason: fmt.Sprintf("mode %s does not support weights; each endpoint counts as 1", b.Mode),
	})
}
