package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// rangesField is where a Service says who may use its LoadBalancer addresses.
const rangesField = "spec.loadBalancerSourceRanges"

// allowFrom returns who may use the LoadBalancer addresses of a family; nil is
// everyone, and empty nobody. The node's address may be invalid: not known.
func (s *service) allowFrom(f proxy.Family, nodeIP netip.Addr) []netip.Prefix {
	of := proxy.PrefixesOf(s.SourceRanges, f)
	switch {
	case len(of) == 0 && s.UnreadableRanges:
		// What could not be read may have been the family's: a typo must not
		// open what somebody meant to close.
		return []netip.Prefix{}
	case len(of) == 0, slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	}
	if slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Contains(nodeIP) }) {
		// A node that holds the address itself talks to it from that address.
		for _, a := range s.Addresses[f] {
			if a.Kind == proxy.LoadBalancer {
				of = append(of, netip.PrefixFrom(a.Addr, f.Bits()))
			}
		}
	}
	return proxy.Outermost(of)
}
