package metrics

import (
	"slices"

	"sluice/internal/proxy"
)

// Observer keeps what is true of the rows that the kernel has. The engine tells
// it of each step; its cost is that of the step.
type Observer struct {
	metrics *Metrics
	without [len(Policies)][len(proxy.Families)]int // service ports without endpoints here
}

// NewObserver returns an observer of a kernel without rows.
func NewObserver(m *Metrics) *Observer { return &Observer{metrics: m} }

// Applied takes a step.
func (o *Observer) Applied(d *proxy.Delta) {
	for _, r := range d.Removes {
		o.count(r, -1)
	}
	for _, u := range d.Upserts {
		if u.Old != nil {
			o.count(u.Old, -1)
		}
		o.count(u.New, 1)
	}
	for _, p := range Policies {
		for _, f := range o.metrics.families {
			o.metrics.NoLocalEndpoints(p, f, o.without[p][f])
		}
	}
}

// count adds a row, or with -1 takes it away.
func (o *Observer) count(sp *proxy.ServicePort, by int) {
	if len(sp.Local) > 0 || !sp.UsableSomewhere {
		return
	}
	if sp.Internal == proxy.ScopeLocal {
		o.without[Internal][sp.Key.Family] += by
	}
	outside := func(f proxy.Frontend) bool { return f.Kind != proxy.ClusterIP }
	if sp.External == proxy.ScopeLocal && slices.ContainsFunc(sp.Frontends, outside) {
		o.without[External][sp.Key.Family] += by
	}
}
