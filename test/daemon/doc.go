// Package daemon tests the daemon as its users meet it: the real binary, in a
// network namespace, on a folder of manifests, with packets. It has no other
// code.
package daemon
