// Package ruleset writes down all that a host does with packets, so that tests
// can tell whether anything of it has changed: nf_tables, both variants of
// iptables, IP sets, links and addresses.
//
// It knows nothing of who made what.
package ruleset
