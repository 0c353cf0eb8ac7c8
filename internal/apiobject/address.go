package apiobject

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	netutils "k8s.io/utils/net"

	"sluice/internal/proxy"
)

// Older API servers accepted IPv4 addresses with leading zeros, which always
// meant decimal, and IPv4-mapped IPv6 addresses. Stored objects still have them.

// parseAddr parses the address of one host.
func (p *parser) parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	zeros := false
	if err != nil && !strings.Contains(text, ":") {
		addr, zeros = netip.AddrFromSlice(netutils.ParseIPSloppy(text).To4())
	}
	switch plain := addr.Unmap(); {
	case text == "":
		return addr, errors.New("is empty")
	case err != nil && !zeros:
		return addr, fmt.Errorf("%.60q is not an IP address", text)
	case addr.Zone() != "":
		return addr, fmt.Errorf("%.60q has a zone, which is not supported", text)
	case plain.IsUnspecified() || plain.IsMulticast() || plain == broadcast:
		return addr, fmt.Errorf("%v is not the address of a single host", addr)
	case p.strict && addr.Is4In6():
		return addr, mappedError(addr)
	case p.strict && zeros:
		return addr, fmt.Errorf("%.60q has leading zeros; write %v", text, addr)
	}
	return addr, nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// endpointAddr parses the address of an endpoint. It may be the address of a node, which
// pods in the host's network have. Loopback and link-local addresses would give access to
// what a host or a link serves only to itself, such as the metadata service of a cloud.
// API servers reject them in new objects, but stored objects may be older than that.
func (p *parser) endpointAddr(text string, family proxy.Family) (netip.Addr, error) {
	addr, err := p.parseAddr(text)
	switch {
	case err != nil:
		return addr, err
	case addr.Is4In6():
		return addr, mappedError(addr)
	case proxy.FamilyOf(addr) != family:
		return addr, fmt.Errorf("%v is not an %v address, but addressType requires one", addr, family)
	case addr.IsLoopback():
		return addr, fmt.Errorf("%v is a loopback address, which other hosts cannot reach", addr)
	case addr.IsLinkLocalUnicast():
		return addr, fmt.Errorf("%v is a link-local address, which traffic is not forwarded to", addr)
	}
	return addr, nil
}

func mappedError(addr netip.Addr) error {
	return fmt.Errorf("%v is an IPv4-mapped IPv6 address; write %v", addr, addr.Unmap())
}

// parsePrefix parses a CIDR range. Bits after the prefix may be set.
func (p *parser) parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	zeros := err != nil
	if zeros {
		var ip net.IP
		var network *net.IPNet
		if ip, network, err = netutils.ParseCIDRSloppy(text); err == nil {
			bits, size := network.Mask.Size()
			addr, _ := netip.AddrFromSlice(ip[len(ip)-size/8:])
			prefix = netip.PrefixFrom(addr, bits)
		}
	}
	if !p.strict && prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	switch {
	case err != nil:
		return prefix, fmt.Errorf("%.60q is not a CIDR range such as 10.0.0.0/8 or fd00::/8", text)
	case prefix.Addr().Is4In6():
		return prefix, fmt.Errorf("%v is an IPv4-mapped IPv6 range; write it as an IPv4 range", prefix)
	case p.strict && zeros:
		return prefix, fmt.Errorf("%.60q has leading zeros; write %v", text, prefix)
	}
	return prefix, nil
}

// ranges parses a list of CIDR ranges, and reports whether all of them are valid.
func (p *parser) ranges(list string, texts []string) (out []netip.Prefix, complete bool) {
	for i, text := range texts {
		prefix, err := p.parsePrefix(strings.TrimSpace(text))
		if err != nil {
			p.add(Invalid, path{list, i, ""}, "%v", err)
			continue
		}
		out = append(out, prefix.Masked())
	}
	return out, len(out) == len(texts)
}

// The flags that set [Allowed]. Problems name them.
const (
	AllowedExternalIPs     = "allowed-external-ips"
	AllowedLoadBalancerIPs = "allowed-load-balancer-ips"
)

// Allowed has the ranges that addresses of Services must be in. A nil list allows every
// address, an empty one none.
type Allowed struct {
	ExternalIPs     []netip.Prefix
	LoadBalancerIPs []netip.Prefix
}

// denies returns the flag that does not allow an address, or "" if it is allowed.
func (a *Allowed) denies(addr Address) (option string) {
	var ranges []netip.Prefix
	switch addr.Kind {
	case proxy.ExternalIP:
		option, ranges = AllowedExternalIPs, a.ExternalIPs
	case proxy.LoadBalancer:
		option, ranges = AllowedLoadBalancerIPs, a.LoadBalancerIPs
	}
	if ranges == nil || proxy.Contains(ranges, addr.Addr) {
		return ""
	}
	return option
}
