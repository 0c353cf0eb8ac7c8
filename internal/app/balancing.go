package app

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// balancing returns how a mode is to choose endpoints.
func (o *Options) balancing(name config.ProxyMode) (resolve.Balancing, error) {
	mode, err := dataplane.Of(name)
	if err != nil {
		return resolve.Balancing{}, err
	}
	b := resolve.Balancing{Mode: string(name), Ways: mode.Balancing, Unweighted: !mode.Weights}
	if o.LoadBalancing == "" {
		return b, nil
	}
	if b.Cluster, err = proxy.ParseBalancing(o.LoadBalancing); err != nil {
		return b, fmt.Errorf("--load-balancing %w", err)
	}
	if slices.Contains(b.Ways, b.Cluster) {
		return b, nil
	}
	var all []string
	for _, m := range dataplane.Modes() {
		all = append(all, fmt.Sprintf("%s: %s", m.Name, proxy.BalancingWords(m.Balancing)))
	}
	return b, fmt.Errorf("--load-balancing %q: mode %s cannot do that; %s", o.LoadBalancing, name, strings.Join(all, "; "))
}

// balancingRefused tells the cluster of Services that ask for what the mode
// cannot do. The log has all of them. Every node has the same to say, so each
// waits a while, differently long, and says little.
func (s *ProxyServer) balancingRefused(found []resolve.Problem) {
	for _, p := range found {
		name, ok := p.Service()
		if !ok || p.Field != apiobject.AnnotationField(apiobject.LoadBalancing) || !s.balancingEvents.Allow() {
			continue
		}
		time.AfterFunc(rand.N(refusalSpread), func() {
			s.events.record(serviceReference(name), v1.EventTypeWarning, reasonBalancing,
				fmt.Sprintf("node %s: %s: %s", s.plan.node, p.Field, p.Reason))
		})
	}
}
