// Package sysctltest has kernel settings in memory, for tests. It passes the
// contract test of package sysctl, as the kernel does.
package sysctltest
