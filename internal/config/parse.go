package config

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ParseBindAddress reads an IP address. The unspecified ones and no text at
// all are the zero Addr: nothing is overridden.
func ParseBindAddress(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, ok := parseAddr(s)
	switch {
	case !ok:
		return netip.Addr{}, wrong(FieldBindAddress, s, "not an IP address")
	case a.Zone() != "":
		return netip.Addr{}, wrong(FieldBindAddress, s, "an address with a zone cannot be a node's address")
	case a.IsUnspecified():
		return netip.Addr{}, nil
	default:
		return a, nil
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

// ParseNodePortAddresses reads a list of CIDRs and of the words primary,
// localhost and all, in any combination. An empty list is every local address.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	given := strings.Join(list, ",")
	var out NodePortAddresses
	for i, item := range list {
		var ranges []string
		switch item {
		case Primary:
			out.Primary = true
		case Localhost:
			ranges = []string{"127.0.0.0/8", "::1/128"}
		case All:
			ranges = []string{"0.0.0.0/0", "::/0"}
		default:
			p, ok := parsePrefix(item)
			if !ok {
				return NodePortAddresses{}, wrong(FieldNodePortAddresses, given,
					"%q is neither a CIDR like 192.0.2.0/24 nor one of the words %s, %s and %s", item, Primary, Localhost, All)
			}
			out.CIDRs = append(out.CIDRs, p)
			continue
		}
		if slices.Contains(list[:i], item) {
			return NodePortAddresses{}, wrong(FieldNodePortAddresses, given, "%q is there twice", item)
		}
		for _, r := range ranges {
			out.CIDRs = append(out.CIDRs, netip.MustParsePrefix(r))
		}
	}
	if len(list) == 1 && list[0] == All {
		return NodePortAddresses{}, nil
	}
	return out, nil
}

// parseServer reads where a server listens: an IP, or an IP and a port.
func parseServer(f Field, s string, port uint16) (netip.AddrPort, error) {
	if a, ok := parseAddr(s); ok && a.Zone() == "" {
		return netip.AddrPortFrom(a, port), nil
	}
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, wrong(f, s, "neither an IP address nor an IP address and a port, like 127.0.0.1:%d", port)
	}
	a, ok := parseAddr(host)
	if !ok || a.Zone() != "" {
		return netip.AddrPort{}, wrong(f, s, "%q is not an IP address", host)
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, wrong(f, s, "the port must be from 1 to 65535")
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// serverString is what parses to the address.
func serverString(a netip.AddrPort) string {
	if !a.IsValid() {
		return None
	}
	return a.String()
}

// parseAddr reads an IP address. Zeros before a decimal number are dropped:
// Kubernetes has always read them so, and never as octal.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(dropZeros(s))
	return a.Unmap(), err == nil
}

// parsePrefix reads a CIDR as sloppily as parseAddr; bits behind the mask are
// dropped.
func parsePrefix(s string) (netip.Prefix, bool) {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		s = dropZeros(s[:i]) + "/" + trimZeros(s[i+1:])
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil && !p.Addr().Is4In6()
}

// dropZeros rewrites the dotted part of an address.
func dropZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	start := strings.LastIndexByte(s, ':') + 1
	parts := strings.Split(s[start:], ".")
	for i, p := range parts {
		parts[i] = trimZeros(p)
	}
	return s[:start] + strings.Join(parts, ".")
}

// trimZeros keeps the last digit, so that a zero stays one.
func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}
