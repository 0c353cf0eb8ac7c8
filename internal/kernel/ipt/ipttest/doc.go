// Package ipttest has a fake of package ipt for tests, which keeps the tables of
// iptables in memory. It passes the contract test of package ipt, as the programs
// do.
package ipttest
