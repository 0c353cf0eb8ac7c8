package link

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LocalRouting makes the kernel deliver packets with a mark on this host, whatever their
// destination: a routing rule selects a table whose only route makes every address
// local. It does not touch other rules and routes. The parameter six of its methods
// selects IPv6.
type LocalRouting struct {
	Mark            uint32
	Table, Priority int
}

// objects returns the rule and the route.
func (r LocalRouting) objects(six bool) (*netlink.Rule, *netlink.Route, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, err
	}
	family, all := unix.AF_INET, &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if six {
		family, all = unix.AF_INET6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask = family, r.Priority, r.Table, r.Mark, &r.Mark
	return rule, &netlink.Route{
		Family: family, LinkIndex: lo.Attrs().Index, Dst: all, Table: r.Table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}, nil
}

// Ensure adds the rule and the route if they are missing.
func (r LocalRouting) Ensure(six bool) error {
	rule, route, err := r.objects(six)
	if err == nil {
		err = netlink.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("add a local route to table %d: %w", r.Table, err)
	}
	if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a routing rule for mark %#x: %w", r.Mark, err)
	}
	return nil
}

// elsewhere has, by whether it is IPv6, an address that no host has: one of the ranges for
// documentation.
var elsewhere = map[bool]net.IP{false: net.IPv4(192, 0, 2, 1).To4(), true: net.ParseIP("2001:db8::1")}

// Leads reports whether the kernel would deliver a packet with the mark on this host. It
// lists nothing.
func (r LocalRouting) Leads(six bool) (bool, error) {
	routes, err := netlink.RouteGetWithOptions(elsewhere[six], &netlink.RouteGetOptions{Mark: r.Mark, FIBMatch: true})
	switch {
	case noRoute(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find the route of packets with mark %#x: %w", r.Mark, err)
	}
	return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
}

// Text returns the commands of the ip program that add the rule and the route.
func (r LocalRouting) Text(six bool) string {
	ip := map[bool]string{false: "ip", true: "ip -6"}[six]
	return fmt.Sprintf("%s rule add fwmark %#x/%#x priority %d lookup %d; %s route add local default dev lo table %d",
		ip, r.Mark, r.Mark, r.Priority, r.Table, ip, r.Table)
}

// Remove removes the rule and the route, and reports whether either existed.
func (r LocalRouting) Remove(six bool) (bool, error) {
	rule, route, err := r.objects(six)
	if err != nil {
		return false, err
	}
	gone := func(err error) bool {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
	}
	ruled, routed := netlink.RuleDel(rule), netlink.RouteDel(route)
	for _, err := range []error{ruled, routed} {
		if err != nil && !gone(err) {
			return false, fmt.Errorf("remove the routing rule and route of table %d: %w", r.Table, err)
		}
	}
	return ruled == nil || routed == nil, nil
}
