package app

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/apiobject"
	"sluice/internal/config"
)

// AllowedOptions are the ranges that addresses of Services must be from, as given:
// CIDRs, or the word none; empty: every address.
type AllowedOptions struct{ ExternalIPs, LoadBalancerIPs []string }

// read returns the ranges that Services may have addresses from.
func (o AllowedOptions) read() (allowed apiobject.Allowed, err error) {
	if allowed.ExternalIPs, err = allowedRanges(apiobject.AllowedExternalIPs, o.ExternalIPs); err != nil {
		return allowed, err
	}
	allowed.LoadBalancerIPs, err = allowedRanges(apiobject.AllowedLoadBalancerIPs, o.LoadBalancerIPs)
	return allowed, err
}

func allowedRanges(option string, items []string) ([]netip.Prefix, error) {
	if slices.Equal(items, []string{config.None}) {
		return []netip.Prefix{}, nil
	}
	var out []netip.Prefix
	for _, item := range items {
		p, ok := config.ParsePrefix(item)
		if !ok {
			return nil, fmt.Errorf("--%s: %q is neither a CIDR like 192.0.2.0/24 nor, alone, the word %s", option, item, config.None)
		}
		out = append(out, p)
	}
	return out, nil
}
