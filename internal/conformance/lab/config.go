package lab

import (
	"net/netip"
	"slices"
)

// The node's links.
const (
	Uplink  = "eth0"    // to the outside
	Bridge  = "cni0"    // to the node's pods
	Transit = "transit" // to the other nodes
)

// Config describes the node of a lab. The zero value is the node of the packet table.
type Config struct {
	NodeAddrs    []netip.Addr // on the uplink, primary addresses first
	BridgeAddrs  []netip.Addr
	TransitAddrs []netip.Addr

	// Bridged says that the node's pods share a subnet and reach each other over the bridge
	// without the node as their router, as with CNI plugins that use a bridge. BridgeNetfilter says
	// that bridges pass packets to netfilter (br_netfilter), as on most nodes with such plugins.
	Bridged, BridgeNetfilter bool

	// Cgroup is the directory of the cgroup of all sockets of the node and its pods. If it is set,
	// a namespace is reused only for a pod with the same addresses.
	Cgroup string
}

// Default returns the configuration with defaults for empty fields.
func (c Config) Default() Config {
	return Config{
		Bridged: c.Bridged, BridgeNetfilter: c.BridgeNetfilter,
		Cgroup:       c.Cgroup,
		NodeAddrs:    orDefault(c.NodeAddrs, "192.168.0.2", "192.168.1.2", "192.168.99.11", "2001:db8::1", "2001:db8:1::2"),
		BridgeAddrs:  orDefault(c.BridgeAddrs, "10.0.0.1", "fd00:10::1"),
		TransitAddrs: orDefault(c.TransitAddrs, "100.64.0.1", "fd64::1"),
	}
}

// LocalAddrs returns all addresses of the node, including loopback.
func (c Config) LocalAddrs() []netip.Addr {
	c = c.Default()
	return slices.Concat(c.NodeAddrs, c.BridgeAddrs, c.TransitAddrs, orDefault(nil, "127.0.0.1", "::1"))
}

func orDefault(addrs []netip.Addr, texts ...string) []netip.Addr {
	if addrs == nil {
		for _, t := range texts {
			addrs = append(addrs, netip.MustParseAddr(t))
		}
	}
	return addrs
}
