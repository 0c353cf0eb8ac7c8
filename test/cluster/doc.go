// Package cluster holds the end-to-end tests: the daemon on three nodes, each
// with its own process, against a real API server. Everything that the tests
// need is in the packages below this one; here is only what they show.
package cluster
