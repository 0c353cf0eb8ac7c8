// Package cluster contains the end-to-end tests: the daemon on three nodes, each in its own
// process, with a real API server. The packages below this one provide everything that the tests
// need.
package cluster
