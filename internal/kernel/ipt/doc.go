// Package ipt runs the iptables programs: iptables-save and
// iptables-restore --noflush, for one family and one of the two variants a host
// can have at the same time (over nf_tables, and legacy).
//
// [Conn] is the programs, found by [Open]; package ipttest has memory that
// refuses what they refuse and counts what it is asked to do; one contract test
// holds both.
//
// The package knows the format of iptables-save and nothing of what chains are
// for. It never names a table to iptables-save, because asking for a table
// makes it, and it does not log.
package ipt
