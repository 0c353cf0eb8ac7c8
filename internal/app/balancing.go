package app

import (
	"fmt"
	"slices"
	"strings"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// balancing returns how a mode is to choose endpoints.
func (o *Options) balancing(name config.ProxyMode) (resolve.Balancing, error) {
	mode, err := dataplane.Rendered(name)
	if err != nil {
		return resolve.Balancing{}, err
	}
	b := resolve.Balancing{Mode: string(name), Ways: mode.Balancing, Unweighted: !mode.Weights, Preserves: mode.PreservesDestination}
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
