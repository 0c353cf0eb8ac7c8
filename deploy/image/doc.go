// Command image builds the container images of Sluice without a container
// engine, for amd64 and arm64, and what goes beside them: an SBOM of each, one
// statement of provenance, checksums and release notes.
//
// There are three tags. VERSION has the static binary and nothing else, which is
// all that modes nftables, ipvs, ebpf and userspace need. VERSION-iptables has the
// programs of iptables, both variants, and nft beside it, from packages of Debian.
// VERSION-windows is for host-process containers of Windows nodes, amd64.
//
// The same sources, packages and Go make the same bytes, wherever and whenever
// they are built. It is a module of its own, so that what it needs never enters
// the daemon's graph.
package main
