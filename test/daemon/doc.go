// Package daemon tests the daemon as its users run it: the real binary, in a network namespace,
// with a folder of manifests and real packets. It has no other code.
package daemon
