package ebpf

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

func ipNet(text string) *net.IPNet {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

// addrOn returns an address on a link.
func addrOn(link int, addr string) netlink.Addr {
	return netlink.Addr{IPNet: ipNet(addr), LinkIndex: link}
}

// route returns a route of the main table. Empty arguments are not set.
func route(link int, to, via, from string) netlink.Route {
	r := netlink.Route{LinkIndex: link, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Gw: net.ParseIP(via), Src: net.ParseIP(from), Family: netlink.FAMILY_V4}
	if to != "" {
		r.Dst = ipNet(to)
		if r.Dst.IP.To4() == nil {
			r.Family = netlink.FAMILY_V6
		}
	}
	return r
}

// TestNewHost checks to which destinations unbound sockets of the node have another source
// address than the rules would give them.
func TestNewHost(t *testing.T) {
	eth0, cni0, flannel := addrOn(1, "192.168.0.2/24"), addrOn(2, "10.244.0.1/24"), addrOn(3, "10.244.0.0/32")
	ordinary := []netlink.Route{
		route(1, "", "192.168.0.1", ""), route(1, "192.168.0.0/24", "", "192.168.0.2"),
		route(2, "10.244.0.0/24", "", "10.244.0.1"), route(3, "10.244.1.0/24", "10.244.1.0", ""),
	}
	local := route(1, "192.168.0.2/32", "", "192.168.0.2")
	local.Table, local.Type = unix.RT_TABLE_LOCAL, unix.RTN_LOCAL
	for _, tt := range []struct {
		name             string
		addrs            []netlink.Addr
		routes           []netlink.Route
		fromPods, hinted []string
	}{
		{"no addresses or routes", nil, nil, nil, nil},
		{"a bridge and a tunnel with addresses of the pods' range", []netlink.Addr{eth0, cni0, flannel}, append(ordinary, local), []string{"10.244.0.0/24", "10.244.1.0/24"}, nil},
		{"a link without an address", []netlink.Addr{eth0}, append(ordinary[:2:2], route(9, "10.244.0.7/32", "", "")), nil, nil},
		{"the same, on a node with an address of the pods' range", []netlink.Addr{eth0, cni0}, []netlink.Route{route(9, "10.244.0.7/32", "", "")}, []string{"10.244.0.7/32"}, nil},
		{"a preferred source", []netlink.Addr{eth0, addrOn(4, "198.51.100.1/32")}, []netlink.Route{route(1, "10.244.1.0/24", "192.168.0.3", "198.51.100.1")}, nil, []string{"10.244.1.0/24"}},
		{"a preferred source of the default route", []netlink.Addr{eth0, addrOn(4, "198.51.100.1/32")}, []netlink.Route{route(1, "", "192.168.0.1", "198.51.100.1"), route(1, "10.9.0.0/16", "192.168.0.3", "")}, nil, []string{"0.0.0.0/0"}},
		{"a preferred source that is the link's address", []netlink.Addr{eth0}, []netlink.Route{route(1, "10.244.1.0/24", "192.168.0.3", "192.168.0.2")}, nil, nil},
		{"the second of two networks on a link", []netlink.Addr{eth0, addrOn(1, "172.16.0.2/16")}, []netlink.Route{route(1, "172.16.0.0/16", "", "172.16.0.2"), route(1, "10.1.0.0/16", "172.16.0.1", "172.16.0.2")}, nil, nil},
		{"another table", []netlink.Addr{eth0, cni0}, []netlink.Route{{LinkIndex: 2, Table: 100, Type: unix.RTN_UNICAST, Family: netlink.FAMILY_V4}}, []string{"0.0.0.0/0"}, nil},
		{"IPv6", []netlink.Addr{addrOn(1, "2001:db8::2/64"), addrOn(2, "fd00:10::1/64")}, []netlink.Route{route(1, "2001:db8::/64", "", ""), route(2, "fd00:10::/64", "", ""), route(1, "fd00:11::/64", "2001:db8::3", "2001:db8::9"), route(1, "fe80::/64", "", "")}, []string{"fd00:10::/64"}, []string{"fd00:11::/64"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(tt.addrs, tt.routes, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/64")})
			text := func(all []netip.Prefix) (out []string) {
				for _, p := range all {
					out = append(out, p.String())
				}
				return out
			}
			if diff := cmp.Diff([][]string{tt.fromPods, tt.hinted}, [][]string{text(h.fromPods), text(h.hinted)}); diff != "" {
				t.Errorf("mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSameSource checks which frontends and endpoints are within the prefixes of a host.
func TestSameSource(t *testing.T) {
	prefix := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return proxy.Outermost(out)
	}
	h := &host{fromPods: prefix("10.1.0.0/16", "10.3.0.0/16"), hinted: prefix("10.8.0.0/16", "10.9.9.0/24")}
	for _, tt := range []struct {
		kind     proxy.Kind
		frontend string
		endpoint string
		want     bool
	}{
		{proxy.ClusterIP, "10.0.255.255:1", "10.7.0.1:1", true},
		{proxy.ClusterIP, "10.1.0.0:1", "10.7.0.1:1", false},
		{proxy.ClusterIP, "10.1.255.255:1", "10.7.0.1:1", false},
		{proxy.ClusterIP, "10.2.0.0:1", "10.7.0.1:1", true},
		{proxy.ExternalIP, "10.3.0.9:1", "10.7.0.1:1", false},
		{proxy.ClusterIP, "10.4.0.0:1", "10.8.0.1:1", false},
		{proxy.ClusterIP, "10.4.0.0:1", "10.9.9.9:1", false},
		{proxy.ClusterIP, "10.4.0.0:1", "10.9.8.9:1", true},
		{proxy.NodePort, "0.0.0.0:1", "10.7.0.1:1", true},
		{proxy.NodePort, "0.0.0.0:1", "10.8.0.1:1", false},
	} {
		f := proxy.Frontend{Kind: tt.kind, Addr: netip.MustParseAddrPort(tt.frontend)}
		to := []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.7.7.7:1")}, {Addr: netip.MustParseAddrPort(tt.endpoint)}}
		if got := h.sameSource(f, to); got != tt.want {
			t.Errorf("%v %v to %v: %t; want %t", tt.kind, f.Addr, to, got, tt.want)
		}
	}
}
