package config

import (
	"net/netip"
	"strings"
)

// maxInterfaceName is the longest name the kernel gives an interface.
const maxInterfaceName = 15

// checkClusterCIDRs wants one CIDR, or one of each family.
func checkClusterCIDRs(list []netip.Prefix) error {
	var given []string
	for _, p := range list {
		given = append(given, p.String())
	}
	value := strings.Join(given, ",")
	switch {
	case len(list) > 2:
		return wrong(FieldClusterCIDR, value, "at most one CIDR of each family")
	case len(list) == 2 && list[0].Addr().Is4() == list[1].Addr().Is4():
		return wrong(FieldClusterCIDR, value, "two CIDRs must be one of each family")
	default:
		return nil
	}
}

// checkInterface wants what a mode needs: a name that an interface can have.
func checkInterface(f Field, name string, m LocalMode) error {
	switch {
	case name == "":
		return wrong(f, name, "needed by mode %s", m)
	case len(name) > maxInterfaceName:
		return wrong(f, name, "longer than the %d characters of an interface name", maxInterfaceName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }):
		return wrong(f, name, "not an interface name")
	default:
		return nil
	}
}

func localModeList() string {
	var names []string
	for _, m := range LocalModes() {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}
