package app

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
	"sluice/internal/resolve"
)

// reportProblems tells the cluster of Services that ask for what the mode cannot
// do, or the configuration does not allow. The log has all problems. Every node has
// the same to say, so each waits a while, differently long, and says little.
func (s *ProxyServer) reportProblems(found []resolve.Problem) {
	for _, p := range found {
		name, ok := p.Service()
		why := reasonBalancing
		if p.Denied.IsValid() {
			why = reasonNotAllowed
		} else if p.Field != apiobject.AnnotationField(apiobject.LoadBalancing) {
			continue
		}
		if !ok || !s.problemEvents.Allow() {
			continue
		}
		time.AfterFunc(rand.N(refusalSpread), func() {
			s.events.record(serviceReference(name), v1.EventTypeWarning, why,
				fmt.Sprintf("node %s: %s: %s", s.plan.node, p.Field, p.Reason))
		})
	}
}
