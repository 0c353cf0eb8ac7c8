package resolve

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// parseAddr reads an address of an API object. Old objects may hold IPv4
// addresses with leading zeros, which always meant decimal.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(decimal(s))
	}
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q has a zone", s)
	case a.IsUnspecified() || a.IsMulticast():
		return netip.Addr{}, fmt.Errorf("%q is not the address of one host", s)
	}
	return a, nil
}

// parsePrefix reads a CIDR of an API object, with the same leniency, and masks it.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, bits, _ := strings.Cut(s, "/")
		p, err = netip.ParsePrefix(decimal(addr) + "/" + trimZeros(bits))
	}
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4-mapped IPv6 range", s)
	}
	return p.Masked(), nil
}

// decimal drops the leading zeros of a dotted address's parts.
func decimal(s string) string {
	if strings.Contains(s, ":") {
		return s
	}
	parts := strings.Split(s, ".")
	for i := range parts {
		parts[i] = trimZeros(parts[i])
	}
	return strings.Join(parts, ".")
}

func trimZeros(s string) string {
	if t := strings.TrimLeft(s, "0"); t != "" || s == "" {
		return t
	}
	return "0"
}

// parseProtocol reads a protocol; an empty one is TCP.
func parseProtocol(p v1.Protocol) (proxy.Protocol, error) {
	switch p {
	case "", v1.ProtocolTCP:
		return proxy.TCP, nil
	case v1.ProtocolUDP:
		return proxy.UDP, nil
	case v1.ProtocolSCTP:
		return proxy.SCTP, nil
	default:
		return 0, fmt.Errorf("%q is not TCP, UDP or SCTP", p)
	}
}

// parsePort checks a port number.
func parsePort(n int32) (uint16, error) {
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("%d is not a port number", n)
	}
	return uint16(n), nil
}

// parseEndpointAddr reads the address of an endpoint in a slice of a family.
func parseEndpointAddr(s string, f proxy.Family) (netip.Addr, error) {
	a, err := parseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%q is an IPv4-mapped IPv6 address", s)
	case proxy.FamilyOf(a) != f:
		return netip.Addr{}, fmt.Errorf("%q is not an %v address", s, f)
	}
	return a, nil
}

// parseFamily reads an IP family.
func parseFamily(s string) (proxy.Family, error) {
	for _, f := range proxy.Families {
		if f.String() == s {
			return f, nil
		}
	}
	return 0, errors.New("neither IPv4 nor IPv6")
}
