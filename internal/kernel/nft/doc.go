// Package nft speaks to the kernel's nf_tables over netlink: atomic batches of
// operations on tables, chains, rules, sets and elements, listings, and a watch
// on what others change. There is no nft program.
//
// [Conn] is the kernel; package nfttest has memory that refuses what the kernel
// refuses and counts operations; one contract test holds both. Expressions of rules are
// encoded by github.com/google/nftables/expr; everything else is encoded here,
// because a batch must hold all kinds of operations and elements by the hundred
// thousand.
//
// The package knows nothing of Services and does not log.
package nft
