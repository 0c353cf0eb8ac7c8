// Package ipt runs the iptables programs iptables-save and
// iptables-restore --noflush, for one family and one of the two variants that a
// host can have at the same time (nft and legacy).
//
// [Conn] runs the programs, which [Open] finds. Package ipttest has a fake that
// keeps tables in memory, refuses what the programs refuse, and counts
// operations. One contract test checks both.
//
// Without the programs, [Rules] reads the rules of either variant, abridged, and [Remove]
// removes rules and chains of the nft variant.
//
// The package knows the format of iptables-save, but not what chains are for. It
// never names a table to iptables-save, because asking for a table creates it,
// and it does not log.
package ipt
