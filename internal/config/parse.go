package config

import (
	"net/netip"
	"slices"
	"strings"
)

// ParseBindAddress reads an IP address. The unspecified ones and no text at
// all are the zero Addr: nothing is overridden.
func ParseBindAddress(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, wrong(FieldBindAddress, s, "not an IP address")
	case a.Zone() != "":
		return netip.Addr{}, wrong(FieldBindAddress, s, "an address with a zone cannot be a node's address")
	case a.IsUnspecified():
		return netip.Addr{}, nil
	default:
		return a.Unmap(), nil
	}
}

// ParseClusterCIDRs reads CIDRs separated by commas.
func ParseClusterCIDRs(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var out []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		p, ok := parsePrefix(item)
		if !ok {
			return nil, wrong(FieldClusterCIDR, s, "%q is not a CIDR like 10.244.0.0/16", strings.TrimSpace(item))
		}
		out = append(out, p)
	}
	return out, nil
}

// ParseNodePortAddresses reads a list of CIDRs, or the word "primary" alone.
// An empty list is every local address.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	given := strings.Join(list, ",")
	if slices.Contains(list, Primary) {
		if len(list) > 1 {
			return NodePortAddresses{}, wrong(FieldNodePortAddresses, given, "%q must stand alone", Primary)
		}
		return NodePortAddresses{Primary: true}, nil
	}
	var out NodePortAddresses
	for _, item := range list {
		p, ok := parsePrefix(item)
		if !ok {
			return NodePortAddresses{}, wrong(FieldNodePortAddresses, given,
				"%q is neither a CIDR like 192.0.2.0/24 nor the word %q", item, Primary)
		}
		out.CIDRs = append(out.CIDRs, p)
	}
	return out, nil
}

// parsePrefix reads a CIDR; bits behind the mask are dropped.
func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(strings.TrimSpace(s))
	return p.Masked(), err == nil && !p.Addr().Is4In6()
}
