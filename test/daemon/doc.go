// Package daemon tests the daemon as its users run it: the real binary, in a network namespace,
// with a folder of manifests and real packets. What its tests have in common is in package testbed.
package daemon
