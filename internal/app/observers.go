package app

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/engine"
	"sluice/internal/proxy"
)

// observers passes on what the engine does to those who want to know.
type observers struct{ *ProxyServer }

var _ engine.Observer = observers{}

// Queued says that a sync was asked for.
func (o observers) Queued() {
	o.metrics.Queued()
	o.health.Queued()
}

// ServiceSeen takes an event of a Service.
func (o observers) ServiceSeen(pending int) { o.metrics.ServiceSeen(pending) }

// EndpointSliceSeen takes an event of an EndpointSlice.
func (o observers) EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int) {
	o.metrics.EndpointSliceSeen(old, cur, pending)
}

// NodeSeen takes this node's Node.
func (o observers) NodeSeen(n *v1.Node) { o.health.SyncNode(n) }

// Began says that a sync begins.
func (o observers) Began(step *proxy.Delta) {
	if o.conntrack != nil {
		o.conntrack.Applying(step)
	}
	o.metrics.Began()
	o.health.Began()
}

// Done says that it has ended. What is in force is told first.
func (o observers) Done(_ context.Context, r engine.Result) {
	if r.Err == nil {
		if o.conntrack != nil {
			o.conntrack.Applied(r.State.Node, r.Changed, r.Full)
		}
		o.checks.Applied(r.Changed)
		o.metrics.Applied(r.Changed)
		o.inForce()
	}
	if r.Refusals {
		o.countRefused()
		o.refusals.changed()
	}
	o.metrics.Done(r.Full, r.Err)
	o.health.Done(r.Err)
	if d, ok := o.dataplane.(proxy.Measured); ok && r.Err != nil {
		d.SyncFailed(r.Full)
	}
}

// countRefused says how many rows the kernel refuses.
func (s *ProxyServer) countRefused() {
	var n [len(proxy.Families)]int
	for _, row := range s.refusals.rows() {
		n[row.Key.Family]++
	}
	for _, f := range s.families {
		s.metrics.Refused(f, n[f])
	}
}
