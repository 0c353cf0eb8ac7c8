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

// Config says what a lab's node is like. The zero value is the node of the packet table.
type Config struct {
	NodeAddrs    []netip.Addr // on the uplink, the primary ones first
	BridgeAddrs  []netip.Addr
	TransitAddrs []netip.Addr

	// Bridged says that the node's pods share a subnet and reach each other over the
	// bridge without the node as their router, as with CNI plugins that use a bridge.
	// BridgeNetfilter says that bridges pass packets to netfilter (br_netfilter), as on
	// most nodes that have such plugins.
	Bridged, BridgeNetfilter bool

	// Cgroup is the folder of the cgroup that the sockets of the node and its pods are
	// in. A pod's namespace keeps its addresses then, also as another pod.
	Cgroup string
}

// Default fills in what is missing.
func (c Config) Default() Config {
	return Config{
		Bridged: c.Bridged, BridgeNetfilter: c.BridgeNetfilter,
		Cgroup:       c.Cgroup,
		NodeAddrs:    or(c.NodeAddrs, "192.168.0.2", "192.168.1.2", "192.168.99.11", "2001:db8::1", "2001:db8:1::2"),
		BridgeAddrs:  or(c.BridgeAddrs, "10.0.0.1", "fd00:10::1"),
		TransitAddrs: or(c.TransitAddrs, "100.64.0.1", "fd64::1"),
	}
}

// LocalAddrs returns every address of the node, loopback included.
func (c Config) LocalAddrs() []netip.Addr {
	c = c.Default()
	return slices.Concat(c.NodeAddrs, c.BridgeAddrs, c.TransitAddrs, or(nil, "127.0.0.1", "::1"))
}

// bridgePrefixes returns the addresses of the bridge, with the subnet that pods share.
func (c Config) bridgePrefixes() []netip.Prefix {
	out := singles(c.BridgeAddrs)
	for i, p := range out {
		if c.Bridged {
			out[i] = netip.PrefixFrom(p.Addr(), p.Bits()/4) // 10.0.0.0/8, fd00:10::/32
		}
	}
	return out
}

func or(addrs []netip.Addr, texts ...string) []netip.Addr {
	if addrs == nil {
		for _, t := range texts {
			addrs = append(addrs, netip.MustParseAddr(t))
		}
	}
	return addrs
}
