package config

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// detectLocal reads how our pods are recognised.
func (r *reading) detectLocal() {
	o, c := r.o, &r.c
	c.DetectLocalMode = cmp.Or(LocalMode(o.DetectLocalMode), LocalModeClusterCIDR)
	c.BridgeInterface = o.DetectLocal.BridgeInterface
	c.InterfaceNamePrefix = o.DetectLocal.InterfaceNamePrefix
	cidrs, err := ParseClusterCIDRs(o.ClusterCIDR)
	if err == nil {
		err = checkClusterCIDRs(cidrs)
	}
	switch c.DetectLocalMode {
	case LocalModeClusterCIDR:
		r.refuse(err)
	case LocalModeNodeCIDR:
	case LocalModeBridgeInterface:
		r.refuse(checkInterface(FieldBridgeInterface, c.BridgeInterface, c.DetectLocalMode))
	case LocalModeInterfaceNamePrefix:
		r.refuse(checkInterface(FieldInterfaceNamePrefix, c.InterfaceNamePrefix, c.DetectLocalMode))
	default:
		r.wrong(FieldDetectLocalMode, c.DetectLocalMode, "no such mode; modes: %s", localModeList())
	}
	// In the other modes nobody reads the ranges, so they may be nonsense.
	if err == nil {
		c.ClusterCIDRs = cidrs
	}
}

// nodePorts reads which addresses take NodePorts. An operator who left the mode
// open has them where kube-proxy's default, iptables, does.
func (r *reading) nodePorts() {
	r.c.LocalhostNodePorts = valueOr(r.o.IPTables.LocalhostNodePorts, true) && r.Mode() != NFTables
	if len(r.o.NodePortAddresses) == 0 {
		r.c.NodePortAddresses.Primary = r.Mode() == NFTables
		return
	}
	var err error
	r.c.NodePortAddresses, err = ParseNodePortAddresses(r.o.NodePortAddresses)
	r.refuse(err)
	// Where nftables was named, loopback must be, too.
	if gates, err := NewGates(r.o.FeatureGates); err == nil && r.Mode() == NFTables {
		r.c.LocalhostNodePorts = gates.Enabled(GateLocalhostNodePorts) &&
			slices.ContainsFunc(r.c.NodePortAddresses.CIDRs, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	}
}

// masquerade reads what hides a client's address.
func (r *reading) masquerade() {
	ipt, nft := r.o.IPTables, r.o.NFTables
	bit, all := ipt.MasqueradeBit, ipt.MasqueradeAll
	switch {
	case r.ownSection():
		bit, all = nft.MasqueradeBit, nft.MasqueradeAll
	case r.c.Mode == NFTables:
		bit, all = cmp.Or(ipt.MasqueradeBit, nft.MasqueradeBit), ipt.MasqueradeAll || nft.MasqueradeAll
	}
	r.checkBit(ipt.MasqueradeBit, FieldIPTablesMasqueradeBit)
	if r.c.Mode == NFTables {
		r.checkBit(nft.MasqueradeBit, FieldNFTablesMasqueradeBit)
	}
	r.c.MasqueradeBit, r.c.MasqueradeAll = int(valueOr(bit, defaultMasqueradeBit)), all
}

// ownSection reports whether only the file's section nftables counts. It does
// when the file names the mode. An operator who left the mode open wrote for
// iptables, kube-proxy's default, and means that in nftables too.
func (r *reading) ownSection() bool { return r.c.Mode == NFTables && r.Mode() == NFTables && !r.Flags }

func (r *reading) checkBit(bit *int32, f Field) {
	if bit != nil && (*bit < 0 || *bit > 31) {
		r.wrong(f, *bit, "must be from 0 to 31")
	}
}

// period is a duration and the field that it comes from.
type period struct {
	value time.Duration
	field Field
}

// periods reads the spacing of syncs.
func (r *reading) periods() {
	every := period{r.o.IPTables.SyncPeriod.Duration, FieldIPTablesSyncPeriod}
	least := period{r.o.IPTables.MinSyncPeriod.Duration, FieldIPTablesMinSyncPeriod}
	everyDefault, leastDefault := defaultSyncPeriod, defaultMinSyncPeriod
	switch r.c.Mode {
	case IPTables:
		leastDefault = 0
		if r.Flags && !r.Given[least.field] {
			least.value = 0 // the flag shows kube-proxy's default
		}
	case IPVS:
		every = period{r.o.IPVS.SyncPeriod.Duration, FieldIPVSSyncPeriod}
		least = period{r.o.IPVS.MinSyncPeriod.Duration, FieldIPVSMinSyncPeriod}
		if !r.Flags {
			leastDefault = 0
		}
	case NFTables:
		everyDefault, leastDefault = fullSyncPeriod, 0
		if r.ownSection() || every.value == 0 && !r.Given[every.field] {
			every = period{r.o.NFTables.SyncPeriod.Duration, FieldNFTablesSyncPeriod}
		}
		if r.ownSection() || least.value == 0 && !r.Given[least.field] {
			least = period{r.o.NFTables.MinSyncPeriod.Duration, FieldNFTablesMinSyncPeriod}
		}
	}
	if least.value == 0 && !r.Given[least.field] {
		least.value = leastDefault
	}
	r.c.SyncPeriod = r.positive(every.field, every.value, everyDefault)
	r.c.MinSyncPeriod = least.value
	switch {
	case least.value < 0:
		r.wrong(least.field, least.value, "must not be negative")
	case r.c.SyncPeriod > 0 && least.value > r.c.SyncPeriod:
		r.wrong(least.field, least.value, "must not be more than %s %v", every.field, r.c.SyncPeriod)
	}
}
