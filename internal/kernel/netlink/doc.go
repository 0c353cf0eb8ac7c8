// Package netlink is what all that we say to the kernel over netlink has in
// common: requests built attribute by attribute, answers read as they arrive,
// batches whose answers are collected, and a watch on a multicast group.
//
// A dump is handed on message by message and never held as a whole, and a batch
// of half a million elements is written into one buffer that is used again.
// Libraries for netlink allocate each message and build the whole answer first,
// which is why this is done here.
//
// The package knows no subsystem and does not log.
package netlink
