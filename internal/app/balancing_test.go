package app

import (
	"fmt"
	"strings"
	"testing"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
)

// balancingOfModes returns the methods of all modes as an error lists them.
func balancingOfModes() string {
	var all []string
	for _, m := range dataplane.Modes() {
		all = append(all, fmt.Sprintf("%s: %s", m.Name, proxy.BalancingWords(m.Balancing)))
	}
	return strings.Join(all, "; ")
}

// TestBalancingReachesTheResolver checks that the method of the flag reaches the
// resolver. A configuration file has no field for it, so the flag applies with one,
// too.
func TestBalancingReachesTheResolver(t *testing.T) {
	for _, tt := range []struct {
		args string
		mode config.ProxyMode
		want proxy.Balancing
	}{
		{"", config.NFTables, proxy.BalanceDefault},
		{"--load-balancing=source-hash", config.NFTables, proxy.SourceHash},
		{"--load-balancing=random --config=/f", config.NFTables, proxy.Random},
		{"--load-balancing=random", config.IPTables, proxy.Random},
	} {
		b, err := parse(t, strings.Fields(tt.args)...).balancing(tt.mode)
		if err != nil || b.Cluster != tt.want || b.Mode != string(tt.mode) || !b.Unweighted {
			t.Errorf("%s, mode %s: %+v, %v; want %v", tt.args, tt.mode, b, err, tt.want)
		}
		rules, err := plan{config: configuration(t), balancing: b}.resolveSettings(t.Context(), nil)
		if err != nil || rules.Balancing.Cluster != tt.want {
			t.Errorf("%s: rules %+v, %v", tt.args, rules.Balancing, err)
		}
	}
}
