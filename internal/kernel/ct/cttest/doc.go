// Package cttest implements connection tracking in memory, for tests. It passes the contract test
// of package ct, as the kernel does.
package cttest
