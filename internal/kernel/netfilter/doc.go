// Package netfilter leads the first packet of a connection through the hooks of netfilter, in
// memory: what the fakes of nf_tables and iptables evaluate their rules with. It knows the order of
// the hooks and what the kernel does between them, not any rule.
package netfilter
