package dataplane

import (
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/kernelspace"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/dataplane/userspace"
)

// table returns the modes of this operating system, the preferred one first.
func table() []Mode {
	return shareTraces([]Mode{
		nftables.Mode(),
		iptables.Mode(),
		ipvs.Mode(),
		userspace.Mode(),
		ebpf.Mode(),
		kernelspace.Mode(),
	})
}
