package dataplane

import (
	"sluice/internal/config"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/nftables"
)

// table lists the modes of this system, the best first.
func table() []Mode {
	return tell([]Mode{
		nftables.Mode(),
		iptables.Mode(),
		ipvs.Mode(), // its sets go after the chains that refer to them
		{Name: config.EBPF},
		{Name: config.Userspace},
	})
}
