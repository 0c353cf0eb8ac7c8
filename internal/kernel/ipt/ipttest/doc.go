// Package ipttest has the tables of iptables in memory, for tests. It passes the
// contract test of package ipt, as the programs do.
package ipttest
