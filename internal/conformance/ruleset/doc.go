// Package ruleset dumps everything that determines what a host does with packets, so that tests can
// detect any change: nf_tables, both variants of iptables, IP sets, links and addresses. It does
// not know who created what.
package ruleset
