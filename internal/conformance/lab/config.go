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

	// Cgroup is the folder of the cgroup that the sockets of the node and its pods are
	// in. A pod's namespace keeps its addresses then, also as another pod.
	Cgroup string
}

// Default fills in what is missing.
func (c Config) Default() Config {
	return Config{
		Cgroup:       c.Cgroup,
		NodeAddrs:    orDefault(c.NodeAddrs, "192.168.0.2", "192.168.1.2", "192.168.99.11", "2001:db8::1", "2001:db8:1::2"),
		BridgeAddrs:  orDefault(c.BridgeAddrs, "10.0.0.1", "fd00:10::1"),
		TransitAddrs: orDefault(c.TransitAddrs, "100.64.0.1", "fd64::1"),
	}
}

// LocalAddrs returns every address of the node, loopback included.
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
