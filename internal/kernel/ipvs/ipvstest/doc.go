// Package ipvstest has IPVS in memory, for tests: it refuses what the kernel
// refuses and counts what it is asked.
package ipvstest
