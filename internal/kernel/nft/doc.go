// Package nft talks to the kernel's nf_tables over netlink: atomic batches of
// operations on tables, chains, rules, sets and elements; listings; notifications of
// changes by other processes; packet traces. It does not run the nft program.
//
// [Conn] is the kernel. Package nfttest has an implementation in memory that refuses what
// the kernel refuses and counts operations; both pass the same contract test.
// Expressions of rules are encoded by github.com/google/nftables/expr. Everything else is
// encoded here, because a batch must hold all kinds of operations, and elements by the
// hundred thousand.
//
// The package knows nothing about Services and does not log.
package nft
