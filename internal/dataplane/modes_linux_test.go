package dataplane

import (
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/kernelspace"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/dataplane/userspace"
	"sluice/internal/proxy"
)

// The optional interfaces of each mode are discovered by type assertions at run time, so
// that a method with a wrong signature would go unnoticed.
var (
	_ proxy.Watcher   = (*nftables.Dataplane)(nil)
	_ proxy.Comparer  = (*nftables.Dataplane)(nil)
	_ proxy.Measured  = (*nftables.Dataplane)(nil)
	_ proxy.Metered   = (*nftables.Dataplane)(nil)
	_ proxy.Leaver    = (*nftables.Dataplane)(nil)
	_ proxy.Inspector = (*nftables.Dataplane)(nil)

	_ proxy.Watcher   = (*iptables.Dataplane)(nil)
	_ proxy.Comparer  = (*iptables.Dataplane)(nil)
	_ proxy.Measured  = (*iptables.Dataplane)(nil)
	_ proxy.Inspector = (*iptables.Dataplane)(nil)
	_ proxy.Metered   = (*iptables.Dataplane)(nil)

	_ proxy.Inspector = (*ipvs.Dataplane)(nil)
	_ proxy.Verifier  = (*ipvs.Dataplane)(nil)
	_ proxy.Runner    = (*ipvs.Dataplane)(nil)
	_ proxy.Metered   = (*ipvs.Dataplane)(nil)

	_ proxy.Inspector = (*userspace.Dataplane)(nil)
	_ proxy.Verifier  = (*userspace.Dataplane)(nil)
	_ proxy.Runner    = (*userspace.Dataplane)(nil)
	_ proxy.Leaver    = (*userspace.Dataplane)(nil)
	_ proxy.Metered   = (*userspace.Dataplane)(nil)

	_ proxy.Inspector = (*ebpf.Dataplane)(nil)
	_ proxy.Verifier  = (*ebpf.Dataplane)(nil)
	_ proxy.Runner    = (*ebpf.Dataplane)(nil)
	_ proxy.Watcher   = (*ebpf.Dataplane)(nil)
	_ proxy.Measured  = (*ebpf.Dataplane)(nil)
	_ proxy.Metered   = (*ebpf.Dataplane)(nil)

	_ proxy.Watcher = (*kernelspace.Dataplane)(nil)
)
