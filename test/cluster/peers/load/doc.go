// Package load fills an API server with Services and EndpointSlices and keeps
// changing them at a given rate, as the controllers of a busy cluster would.
//
// Every address is computed from a number, so that nobody has to remember which
// endpoints a Service has. The package knows nothing of proxies.
package load
