package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// The words that nodePortAddresses accepts besides CIDRs.
const (
	Primary   = "primary"   // the addresses of the Node object
	Localhost = "localhost" // loopback addresses
	All       = "all"       // every local address
)

// None is the word that disables a server, instead of its address.
const None = "none"

// parseBindAddress parses an IP address. It returns the zero Addr for the empty
// string and for unspecified addresses.
func parseBindAddress(s string) (netip.Addr, error) {
	a, ok := parseAddr(s)
	switch {
	case s == "" || ok && a.IsUnspecified():
		return netip.Addr{}, nil
	case strings.Contains(s, "%"):
		return netip.Addr{}, errors.New("an address with a zone cannot be a node's address")
	case !ok:
		return netip.Addr{}, errors.New("not an IP address")
	default:
		return a, nil
	}
}

// parseClusterCIDRs parses CIDRs separated by commas: none, one, or one of each
// family.
func parseClusterCIDRs(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var out []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		p, ok := ParsePrefix(item)
		if !ok {
			return nil, fmt.Errorf("%q is not a CIDR like 10.244.0.0/16", strings.TrimSpace(item))
		}
		out = append(out, p)
	}
	switch {
	case len(out) > 2:
		return nil, errors.New("must be at most one CIDR of each family")
	case len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4():
		return nil, errors.New("two CIDRs must be one of each family")
	}
	return out, nil
}

// addressWords are the CIDRs that words stand for.
var addressWords = map[string][]string{Primary: nil, Localhost: {"127.0.0.0/8", "::1/128"}, All: {"0.0.0.0/0", "::/0"}}

// parseNodePortAddresses parses a list of CIDRs and of the words primary, localhost
// and all, in any combination. An empty list means every local address.
func parseNodePortAddresses(list []string) (NodePortAddresses, error) {
	if len(list) == 1 && list[0] == All {
		return NodePortAddresses{}, nil
	}
	out := NodePortAddresses{Primary: slices.Contains(list, Primary)}
	for i, item := range list {
		cidrs, isWord := addressWords[item]
		if isWord && slices.Contains(list[:i], item) {
			return out, fmt.Errorf("%q is there twice", item)
		}
		if !isWord {
			cidrs = []string{item}
		}
		for _, cidr := range cidrs {
			p, ok := ParsePrefix(cidr)
			if !ok {
				return out, fmt.Errorf("%q is neither a CIDR like 192.0.2.0/24 nor one of the words %s, %s and %s",
					item, Primary, Localhost, All)
			}
			out.CIDRs = append(out.CIDRs, p)
		}
	}
	return out, nil
}

// parseServer parses the address of a server: an IP address, for the given port, or
// an IP address and a port.
func parseServer(s string, port uint16) (netip.AddrPort, error) {
	if a, ok := parseAddr(s); ok {
		return netip.AddrPortFrom(a, port), nil
	}
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("must be an IP address, or an IP address and a port, like 127.0.0.1:%d", port)
	}
	a, ok := parseAddr(host)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IP address", host)
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, errors.New("the port must be from 1 to 65535")
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// serverString is the inverse of parseServer; the zero AddrPort is None.
func serverString(a netip.AddrPort) string {
	if !a.IsValid() {
		return None
	}
	return a.String()
}

// parseAddr parses an IP address. It ignores leading zeros of IPv4 octets, as
// Kubernetes always has, instead of taking them for octal numbers.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return a.Unmap(), ok
}

// ParsePrefix parses a CIDR, with or without space around it. It ignores leading
// zeros and clears the bits behind the mask.
func ParsePrefix(s string) (netip.Prefix, bool) {
	_, n, err := netutils.ParseCIDRSloppy(strings.TrimSpace(s))
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a, ones), !a.Is4In6()
}

// maxInterfaceName is the kernel's limit for the name of an interface.
const maxInterfaceName = 15

// checkInterface returns an error if name, which a mode needs, is not a valid name of
// an interface.
func checkInterface(name string, m v1alpha1.LocalMode) error {
	switch {
	case name == "":
		return fmt.Errorf("mode %s needs it", m)
	case len(name) > maxInterfaceName:
		return fmt.Errorf("longer than the %d characters of an interface name", maxInterfaceName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }):
		return errors.New("not an interface name")
	default:
		return nil
	}
}
