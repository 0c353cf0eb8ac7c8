package app

import (
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	metricsfeatures "k8s.io/component-base/metrics/features"
)

// clientGates lets client-go ask our gates for its features.
type clientGates struct {
	ours   featuregate.MutableFeatureGate
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
func openGates(gates featuregate.MutableFeatureGate) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates, clientfeatures.FeatureGates()})
	metricsfeatures.ApplyFeatureGates(gates)
	gates.AddMetrics()
}
