package app

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	metricsfeatures "k8s.io/component-base/metrics/features"

	"sluice/internal/config"
)

// gatesValue is the flag --feature-gates: Name=true,Other=false.
type gatesValue struct{ gates *map[string]bool }

// String returns the gates, sorted.
func (v gatesValue) String() string {
	if v.gates == nil {
		return ""
	}
	return config.GatesText(*v.gates)
}

// Set adds gates.
func (v gatesValue) Set(s string) error {
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, ok := strings.Cut(item, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if !ok || err != nil {
			return fmt.Errorf("%q is not Name=true or Name=false", item)
		}
		if *v.gates == nil {
			*v.gates = map[string]bool{}
		}
		(*v.gates)[strings.TrimSpace(name)] = on
	}
	return nil
}

// Type returns the kind of value.
func (gatesValue) Type() string { return "gates" }

// gateNotices names the gates that will go.
func gateNotices(c *config.Configuration) []notice {
	var out []notice
	all := c.Gates().GetAll()
	for _, name := range slices.Sorted(maps.Keys(c.Object.FeatureGates)) {
		if stage := all[featuregate.Feature(name)].PreRelease; stage == featuregate.GA || stage == featuregate.Deprecated {
			out = append(out, notice{"A feature gate will be removed in a later version", []any{"gate", name}})
		}
	}
	return out
}

// clientGates lets client-go ask our gates for its features.
type clientGates struct {
	ours   config.Gates
	theirs clientfeatures.Gates // for what is newer than our table
}

// Enabled reports whether a feature of client-go is on.
func (g clientGates) Enabled(name clientfeatures.Feature) bool {
	if _, ok := g.ours.GetAll()[featuregate.Feature(name)]; !ok {
		return g.theirs.Enabled(name)
	}
	return g.ours.Enabled(featuregate.Feature(name))
}

// openGates puts the gates in force that belong to the whole process: those of
// client-go, before the first client, and how metrics are made. It also shows
// all of them as a metric.
func openGates(gates config.Gates) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates, clientfeatures.FeatureGates()})
	metricsfeatures.ApplyFeatureGates(gates)
	gates.AddMetrics()
}
