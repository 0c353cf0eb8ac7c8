// Package netlink has what all our users of netlink have in common: requests built
// attribute by attribute, answers read message by message, batches whose errors are
// collected afterwards, and multicast groups.
//
// A dump is passed on message by message and never held as a whole, and a batch of
// half a million elements is written into a single buffer that is reused. Netlink
// libraries allocate each message and collect the whole answer first, which is why
// this package exists.
//
// The package knows no netlink subsystem and does not log.
package netlink
