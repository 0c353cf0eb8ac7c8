// Command image builds the container images of Sluice without a container engine, for amd64 and
// arm64, together with an SBOM for each, a provenance statement, checksums and release notes.
//
// There are three tags. VERSION contains only the static binary, which is all that modes nftables,
// ipvs, ebpf and userspace need. VERSION-iptables adds the programs of iptables, both variants, and
// nft, from Debian packages. VERSION-windows is for host-process containers on Windows nodes,
// amd64.
//
// Builds are reproducible: the same sources, packages and Go version produce the same bytes. It is
// a separate module, so that its dependencies never enter the daemon's module graph.
package main
