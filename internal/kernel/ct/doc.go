// Package ct talks to the kernel's connection tracking over netlink: it dumps the flows of one
// family and protocol, or all that are translated, deletes single flows, and receives events of
// flows that end.
//
// [Conn] and [KernelEnds] are the implementations for the kernel, package cttest has one in memory;
// one contract test checks both. A dump is filtered by the kernel and decoded as it arrives, so a
// table with a million TCP connections costs no memory when only its UDP flows are requested.
//
// The package knows nothing about Services and does not log.
package ct
