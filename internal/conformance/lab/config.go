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

// Config says what a lab's node is like. The zero value is the node of the
// packet table.
type Config struct {
	NodeAddrs    []netip.Addr // on the uplink, the primary ones first
	BridgeAddrs  []netip.Addr
	TransitAddrs []netip.Addr
}

// Default fills in what is missing.
func (c Config) Default() Config {
	if c.NodeAddrs == nil {
		c.NodeAddrs = addrs("192.168.0.2", "192.168.1.2", "192.168.99.11", "2001:db8::1", "2001:db8:1::2")
	}
	if c.BridgeAddrs == nil {
		c.BridgeAddrs = addrs("10.0.0.1", "fd00:10::1")
	}
	if c.TransitAddrs == nil {
		c.TransitAddrs = addrs("100.64.0.1", "fd64::1")
	}
	return c
}

// LocalAddrs returns every address of the node, loopback included.
func (c Config) LocalAddrs() []netip.Addr {
	c = c.Default()
	return slices.Concat(c.NodeAddrs, c.BridgeAddrs, c.TransitAddrs, addrs("127.0.0.1", "::1"))
}

func addrs(text ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range text {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}
