// Package linktest has a host whose addresses are set by hand, for tests. It
// passes the contract test of package link, as the kernel does.
package linktest
