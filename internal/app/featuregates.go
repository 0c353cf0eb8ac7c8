package app

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sluice/internal/config"
)

// gatesValue is the flag --feature-gates: Name=true,Other=false.
type gatesValue struct{ gates *map[string]bool }

// String returns the gates, sorted.
func (v gatesValue) String() string {
	if v.gates == nil {
		return ""
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(*v.gates)) {
		out = append(out, fmt.Sprintf("%s=%t", name, (*v.gates)[name]))
	}
	return strings.Join(out, ",")
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

// gateNotices names the gates that we have never heard of.
func gateNotices(gates map[string]bool) []notice {
	var out []notice
	for _, name := range config.UnknownGates(gates) {
		out = append(out, notice{"A feature gate is not known and changes nothing", []any{"gate", name}})
	}
	return out
}

// loggingGate returns the gates that guard the logging options.
func loggingGate(gates map[string]bool) (featuregate.FeatureGate, error) {
	gate := featuregate.NewVersionedFeatureGate(utilversion.MustParse("1.36"))
	if err := logsapi.AddFeatureGates(gate); err != nil {
		return nil, err
	}
	known := gate.GetAll()
	ours := maps.Clone(gates)
	maps.DeleteFunc(ours, func(name string, _ bool) bool {
		_, ok := known[featuregate.Feature(name)]
		return !ok
	})
	return gate, gate.SetFromMap(ours)
}
