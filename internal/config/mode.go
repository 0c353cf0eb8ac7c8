package config

import (
	"fmt"
	"slices"
	"strings"
)

// ProxyMode is a way of programming the kernel, as operators spell it.
type ProxyMode string

// The proxy modes.
const (
	NFTables  ProxyMode = "nftables"
	IPTables  ProxyMode = "iptables"
	IPVS      ProxyMode = "ipvs"
	EBPF      ProxyMode = "ebpf"
	Userspace ProxyMode = "userspace"
)

// Modes returns the modes that are built, the default first.
func Modes() []ProxyMode { return []ProxyMode{NFTables, IPTables} }

// Check says why a mode cannot be used; nil if it can.
func (m ProxyMode) Check() error {
	switch {
	case slices.Contains(Modes(), m):
		return nil
	case slices.Contains([]ProxyMode{IPVS, EBPF, Userspace}, m):
		return fmt.Errorf("mode %s is not built yet; modes: %s", m, modeList())
	default:
		return fmt.Errorf("no such mode; modes: %s", modeList())
	}
}

func modeList() string {
	var names []string
	for _, m := range Modes() {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}

// LocalMode is a way of recognising the traffic of our pods, as operators
// spell it.
type LocalMode string

// The ways of recognising our pods.
const (
	LocalModeClusterCIDR         LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// LocalModes returns all of them, the default first.
func LocalModes() []LocalMode {
	return []LocalMode{
		LocalModeClusterCIDR, LocalModeNodeCIDR, LocalModeBridgeInterface, LocalModeInterfaceNamePrefix,
	}
}
