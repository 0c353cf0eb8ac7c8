package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// DetectLocalMode says how the traffic of our pods is recognised.
type DetectLocalMode uint8

// The modes.
const (
	DetectClusterCIDR         DetectLocalMode = iota // by the source address: the cluster's pod ranges
	DetectNodeCIDR                                   // by the source address: this Node's pod ranges
	DetectBridgeInterface                            // by the interface it comes in on
	DetectInterfaceNamePrefix                        // by the beginning of that interface's name
	DetectNone                                       // not at all
)

// String returns the mode as the configuration spells it.
func (m DetectLocalMode) String() string {
	return [...]string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", "None"}[m]
}

// Settings are what the resolver knows from the configuration.
type Settings struct {
	NodeName      string         // the name of this node
	Families      []proxy.Family // which families are served; nil: both
	DetectLocal   DetectLocalMode
	ClusterCIDRs  []netip.Prefix // for DetectClusterCIDR; the first of each family counts
	Interface     string         // for the interface modes: an exact name, or a prefix of one
	MasqueradeAll bool

	IgnoreExternalIPs bool // Services are not reached by spec.externalIPs; for New only

	NodePortAddresses  NodePortAddresses
	LocalhostNodePorts bool // IPv4 loopback addresses may take NodePorts

	// NodeIPs come before the Node's own addresses. A family without one here
	// still has the Node's.
	NodeIPs []netip.Addr
}

// NodePortAddresses selects the node addresses that take NodePorts. The zero
// value is every local address.
type NodePortAddresses struct {
	Primary bool           // the node's own primary IPs
	CIDRs   []netip.Prefix // and addresses within; a family without any, unless Primary: every local address of it
}

// serves reports whether a family gets rows.
func (s *Settings) serves(f proxy.Family) bool {
	return s.Families == nil || slices.Contains(s.Families, f)
}

// served returns the prefixes of the families that get rows.
func (s *Settings) served(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if s.serves(proxy.FamilyOf(p.Addr())) {
			out = append(out, p)
		}
	}
	return out
}
