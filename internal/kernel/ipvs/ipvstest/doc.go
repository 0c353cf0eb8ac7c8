// Package ipvstest implements IPVS in memory, for tests: it refuses what the kernel
// refuses and counts requests.
package ipvstest
