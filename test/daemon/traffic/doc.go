// Package traffic tests that no request goes wrong while things change: Services and their
// endpoints, the daemon's version and settings, kube-proxy before it. It has no other code.
package traffic
