// Package metrics tells a monitoring system how the proxy does, under the names,
// types, labels and buckets that kube-proxy has given its metrics:
//
//	engine ----> Watchdog: how long syncs take, what waits, how long a change took to arrive
//	engine ----> Observer: what is true of the rows that the kernel has
//	others ----> Metrics:  one small method for each thing that can happen
//
// Whoever makes Metrics gives the place where they are registered, so nothing
// here is shared by two of them. The package measures and counts; it does not
// serve HTTP, log, or decide anything.
package metrics
