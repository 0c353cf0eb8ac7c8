// Package ct speaks to the kernel's connection tracking over netlink: it dumps
// the flows of one family and protocol or all that are translated, deletes flows
// one by one, and hears of those that end.
//
// [Conn] and [KernelEnds] are the kernel, package cttest has memory; one contract
// test holds both. A dump is filtered by the kernel and decoded as it arrives, so a table with a
// million TCP connections costs no memory when its UDP flows are asked for.
//
// The package knows nothing of Services and does not log.
package ct
