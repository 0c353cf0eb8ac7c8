// Package testbed is what the tests of the daemon have in common: they run the real binary as its
// users do, in a network namespace, with a folder of manifests and real packets.
//
//	         folder of manifests --> daemon --> rules of the node
//	                                               |
//	client pod, 10.0.0.2 ----> node test-node -----+----> pod A, 10.0.0.11
//	                                               +----> pod B, 10.0.0.12
//
// The tests themselves are in a package per theme, so that one theme can be run alone:
//
//	command   the command: flags, files, servers, privileges, what it leaves on the node
//	explain   sluice explain and sluice status
//	traffic   requests while Services, modes and daemons change
//	faults    what happens to the daemon and its machine: kills, stops, failing system calls, limits
//	foreign   what other programs do to the rules, and how they are repaired
//
// Each needs root, network namespaces and minutes, so -short leaves all of them out.
package testbed
