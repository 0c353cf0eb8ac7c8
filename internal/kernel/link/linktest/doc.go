// Package linktest has fakes of package link for tests, whose addresses are set by hand.
// They pass the contract test of package link, as the kernel does.
package linktest
