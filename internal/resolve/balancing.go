package resolve

import (
	"fmt"
	"slices"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// Balancing is what the configuration and the mode say of how endpoints are
// chosen. Rows ask a mode for nothing that it cannot do. The zero value is a
// mode that can do everything but what Windows alone has.
type Balancing struct {
	Mode       string            // its name
	Ways       []proxy.Balancing // that the mode knows; nil: all
	Unweighted bool              // the mode has no weights
	Cluster    proxy.Balancing   // for Services that do not say
	Preserves  bool              // the mode reads annotation preserve-destination
}

// of returns how the endpoints of a Service are chosen that asks for a way, and
// adds a problem if it cannot have it.
func (b *Balancing) of(asked proxy.Balancing, problems []apiobject.Problem) (proxy.Balancing, []apiobject.Problem) {
	switch {
	case asked == proxy.BalanceDefault:
		return b.Cluster, problems
	case b.Ways == nil || slices.Contains(b.Ways, asked):
		return asked, problems
	}
	return b.Cluster, append(problems, apiobject.Problem{
		Field: apiobject.AnnotationField(apiobject.LoadBalancing),
		Reason: fmt.Sprintf("mode %s cannot do %v, only %s; endpoints are chosen as if it were not there",
			b.Mode, asked, proxy.BalancingWords(b.Ways)),
	})
}

// weight returns how much the endpoints of a slice count that asks for a weight,
// and adds a problem if the mode has none.
func (b *Balancing) weight(asked uint16, problems []apiobject.Problem) (uint16, []apiobject.Problem) {
	if asked == 0 || !b.Unweighted {
		return asked, problems
	}
	return 0, append(problems, apiobject.Problem{
		Field:  apiobject.AnnotationField(apiobject.Weight),
		Reason: fmt.Sprintf("mode %s has no weights; each endpoint counts as 1", b.Mode),
	})
}
