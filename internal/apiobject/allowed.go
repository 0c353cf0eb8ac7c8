package apiobject

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// The options that say which addresses Services may have, as problems name them.
const (
	AllowedExternalIPs     = "allowed-external-ips"
	AllowedLoadBalancerIPs = "allowed-load-balancer-ips"
)

// Allowed are the ranges that the addresses of Services must be from. A nil list
// allows every address, an empty one none.
type Allowed struct {
	ExternalIPs     []netip.Prefix
	LoadBalancerIPs []netip.Prefix
}

// denies returns the option that does not allow an address, empty if a Service
// may have it.
func (a *Allowed) denies(addr Address) (option string) {
	var ranges []netip.Prefix
	switch addr.Kind {
	case proxy.ExternalIP:
		option, ranges = AllowedExternalIPs, a.ExternalIPs
	case proxy.LoadBalancer:
		option, ranges = AllowedLoadBalancerIPs, a.LoadBalancerIPs
	}
	if ranges == nil || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr.Addr) }) {
		return ""
	}
	return option
}
