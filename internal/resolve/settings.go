package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// Settings are what the resolver knows from the configuration.
type Settings struct {
	NodeName      string         // the name of this node
	Families      []proxy.Family // which families are served; nil: both
	MasqueradeAll bool

	// LocalPods recognises the traffic of our pods: of Sources, the cluster's pod
	// ranges, the first of each family counts. NodeCIDRs takes this Node's instead.
	LocalPods proxy.LocalTrafficDetector
	NodeCIDRs bool

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
