// Package kubeproxy knows what kube-proxy leaves in a kernel and takes it away:
// the tables of its nftables mode; the chains and jumps of its iptables and ipvs
// modes, in both variants of iptables; the link, the virtual servers and the IP
// sets of its ipvs mode.
//
// [Find] looks and changes nothing, [Cleanup] removes. Everything is known by
// the exact name kube-proxy gives it, because others use its prefix: kubelet has
// KUBE-FIREWALL and KUBE-MARK-DROP, network policy controllers have chains and
// sets of their own. What is not kube-proxy's is never touched, and no kernel
// module is loaded to look for what cannot be there without it. Tables of
// iptables stay when they are empty: they are nobody's.
//
// The package knows nothing of Services or of our own rules, and does not log.
package kubeproxy
