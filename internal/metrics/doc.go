// Package metrics defines the proxy's Prometheus metrics. Those that kube-proxy
// has, too, keep its names, types, labels and buckets; most others begin with
// sluice_. [Metrics] has one small method for each kind of event; metrics that a
// mode maintains itself are only passed on.
//
// Metrics are registered in the registry that the caller gives, so instances
// share nothing. The package measures and counts; it does not serve HTTP, log or
// make decisions, and does not know any mode.
package metrics
