// Package sysctltest has a fake of package sysctl for tests, which keeps settings in memory.
// It passes the contract test of package sysctl, as the kernel does.
package sysctltest
