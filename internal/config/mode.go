package config

import "k8s.io/kube-proxy/config/v1alpha1"

// ProxyMode is a way of programming the kernel, as operators spell it.
type ProxyMode string

// The proxy modes, built or to come.
const (
	NFTables  ProxyMode = "nftables"
	IPTables  ProxyMode = "iptables"
	IPVS      ProxyMode = "ipvs"
	EBPF      ProxyMode = "ebpf"
	Userspace ProxyMode = "userspace"
)

// The ways of recognising the traffic of our pods, as operators spell them.
const (
	LocalModeClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR" // the default
	LocalModeNodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)
