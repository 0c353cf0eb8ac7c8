package dataplane

import (
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/kernelspace"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/dataplane/userspace"
)

// table lists the modes of this system, the best first.
func table() []Mode {
	return tell([]Mode{
		nftables.Mode(),
		iptables.Mode(),
		ipvs.Mode(),
		userspace.Mode(),
		ebpf.Mode(),
		kernelspace.Mode(),
	})
}
