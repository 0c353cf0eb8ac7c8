// Package metrics tells a monitoring system how the proxy does, under the names,
// types, labels and buckets that kube-proxy has given its metrics; what only we
// have begins with our name. Metrics has
// one small method for each thing that can happen; what a mode counts by itself
// it only passes on.
//
// Whoever makes Metrics gives the place where they are registered, so nothing
// here is shared by two of them. The package measures and counts; it does not
// serve HTTP, log, or decide anything, and it knows no mode.
package metrics
