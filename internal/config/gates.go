package config

import (
	_ "embed" // for the table of gates
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

// The feature gates that this daemon uses.
const (
	GateExternalIPs        featuregate.Feature = "AllowServiceExternalIPs"
	GateIPVS               featuregate.Feature = "KubeProxyIPVS"
	GateLocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
	GateFlagz              featuregate.Feature = "ComponentFlagz"
	GateStatusz            featuregate.Feature = "ComponentStatusz"
)

// KubernetesVersion is the minor version of the kube-proxy that this daemon replaces.
const KubernetesVersion = "1.37"

//go:embed gates.txt
var gateTable string

// NewGates returns the feature gates of kube-proxy, some of them set. It is an error
// to set a gate that is unknown, locked to another value, or needs another gate.
func NewGates(set map[string]bool) (featuregate.MutableFeatureGate, error) {
	gates := featuregate.NewVersionedFeatureGate(version.MustParse(KubernetesVersion))
	known := map[featuregate.Feature]featuregate.FeatureSpec{}
	needs := map[featuregate.Feature][]featuregate.Feature{}
	stages := map[string]featuregate.FeatureSpec{
		"ALPHA": {PreRelease: featuregate.Alpha}, "BETA": {PreRelease: featuregate.Beta},
		"GA": {PreRelease: featuregate.GA}, "DEPRECATED": {PreRelease: featuregate.Deprecated},
	}
	for line := range strings.Lines(gateTable) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		name := featuregate.Feature(words[0])
		spec, ok := stages[words[1]]
		if !ok {
			panic(fmt.Sprintf("feature gate %s has no stage %q", name, words[1]))
		}
		spec.Default, spec.LockToDefault = words[2] == "true", slices.Contains(words[3:], "locked")
		for _, w := range words[3:] {
			if others, ok := strings.CutPrefix(w, "needs="); ok {
				for o := range strings.SplitSeq(others, ",") {
					needs[name] = append(needs[name], featuregate.Feature(o))
				}
			}
		}
		known[name] = spec
	}
	if err := errors.Join(gates.Add(known), gates.AddDependencies(needs)); err != nil {
		panic("invalid table of feature gates: " + err.Error())
	}
	if err := gates.SetFromMapWithLogger(logr.Discard(), set); err != nil {
		return nil, err
	}
	return gates, nil
}

// GatesText returns gates in the syntax of --feature-gates, sorted.
func GatesText(gates map[string]bool) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		out = append(out, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return strings.Join(out, ",")
}
