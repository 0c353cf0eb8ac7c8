// Package ipvs removes what kube-proxy's ipvs mode leaves beside its chains: the
// link that holds Service addresses, the virtual servers at those addresses and
// its IP sets. Its chains share names and tables with those of the iptables
// modes and are removed with them, in package iptables, before the sets that
// their rules refer to.
//
// Everything is known by the exact name kube-proxy gives it, because others use
// its prefix: network policy controllers have sets of their own. No kernel module
// is loaded to look for what cannot be there without it.
package ipvs
