package link_test

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/link"
)

// TestRoutingLeads tells whether packets with the mark come here.
func TestRoutingLeads(t *testing.T) {
	lo := namespace(t)
	r := link.LocalRouting{Mark: 1 << 20, Table: 10270, Priority: 10270}
	for six, family := range map[bool]int{false: unix.AF_INET, true: unix.AF_INET6} {
		want := func(want bool, when string) {
			t.Helper()
			if leads, err := r.Leads(six); leads != want || err != nil {
				t.Errorf("IPv6 %t, %s: %t, error %v; want %t", six, when, leads, err, want)
			}
		}
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table = family, r.Priority, r.Table
		all := &net.IPNet{IP: make(net.IP, 4), Mask: net.CIDRMask(0, 32)}
		if six {
			all = &net.IPNet{IP: make(net.IP, 16), Mask: net.CIDRMask(0, 128)}
		}
		route := &netlink.Route{Dst: all, Family: family, Table: r.Table, LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(&netlink.Route{Dst: all, Family: family, LinkIndex: lo.Attrs().Index}); err != nil { // packets go elsewhere
			t.Fatal(err)
		}
		for _, step := range []struct {
			when string
			do   func() error
			want bool
		}{
			{"before", func() error { return nil }, false},
			{"with both", func() error { return r.Ensure(six) }, true},
			{"without the rule", func() error { return netlink.RuleDel(rule) }, false},
			{"repaired", func() error { return r.Ensure(six) }, true},
			{"without the route", func() error { return netlink.RouteDel(route) }, false},
			{"repaired again", func() error { return r.Ensure(six) }, true},
			{"removed", func() error { _, err := r.Remove(six); return err }, false},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("IPv6 %t, %s: %v", six, step.when, err)
			}
			want(step.want, step.when)
		}
		if text := r.Text(six); !strings.Contains(text, "fwmark 0x100000/0x100000") || strings.Contains(text, "-6") != six {
			t.Errorf("IPv6 %t: %s", six, text)
		}
	}
}
