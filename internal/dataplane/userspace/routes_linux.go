package userspace

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// routing is how packets with our mark get to this host's sockets: a rule leads
// to a table of ours, by whose only route everything is local. Others' rules and
// routes are left alone.
type routing struct {
	family int
	all    *net.IPNet
}

const (
	routeTable   = 10270
	rulePriority = 10270
)

func routingOf(f proxy.Family) routing {
	if f == proxy.IPv6 {
		return routing{unix.AF_INET6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	}
	return routing{unix.AF_INET, &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}
}

func (r routing) rule() *netlink.Rule {
	rule := netlink.NewRule()
	mask := uint32(socketMark)
	rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask = r.family, rulePriority, routeTable, socketMark, &mask
	return rule
}

func (r routing) route() (*netlink.Route, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	return &netlink.Route{
		Family: r.family, LinkIndex: lo.Attrs().Index, Dst: r.all, Table: routeTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}, nil
}

// ensure adds what is missing.
func (r routing) ensure() error {
	route, err := r.route()
	if err == nil {
		err = netlink.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("add a local route to table %d: %w", routeTable, err)
	}
	if err := netlink.RuleAdd(r.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a routing rule for mark %#x: %w", socketMark, err)
	}
	return nil
}

// remove takes away what is ours, and reports whether there was anything.
func (r routing) remove() (bool, error) {
	gone := func(err error) bool {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
	}
	ruled := netlink.RuleDel(r.rule())
	if ruled != nil && !gone(ruled) {
		return false, fmt.Errorf("remove the routing rule for mark %#x: %w", socketMark, ruled)
	}
	route, err := r.route()
	if err == nil {
		err = netlink.RouteDel(route)
	}
	if err != nil && !gone(err) {
		return false, fmt.Errorf("remove the local route of table %d: %w", routeTable, err)
	}
	return ruled == nil || err == nil, nil
}
