// Package deploy tests what is under deploy/ without a cluster, with Helm's,
// Kustomize's and Prometheus's own libraries: the Kustomize base and the Helm
// chart are the same, strictly typed objects; every value arrives, and a wrong
// one is refused; they ask for no more privileges than they say, and the real
// daemon runs with those, in its images; each alert fires when it should, and
// every query of alerts and dashboard asks for metrics that the real daemon has. It
// has no other code, and is a module of its own so that those libraries never enter
// the daemon's graph.
package deploy
