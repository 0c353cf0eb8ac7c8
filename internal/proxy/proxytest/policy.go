package proxytest

import (
	"fmt"
	"net/netip"

	"sluice/internal/proxy"
)

// PolicyNodes returns nodes with every combination of settings that policy depends on.
func PolicyNodes() []*proxy.Node {
	var out []*proxy.Node
	for _, all := range []bool{false, true} {
		for _, pods := range []proxy.LocalTrafficDetector{
			{},
			{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			{Sources: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}},
			{Interface: "cni0"},
			{Interface: "veth", IsPrefix: true, Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		} {
			out = append(out, &proxy.Node{
				MasqueradeAll: all, LocalPods: pods,
				NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
			})
		}
	}
	return out
}

// PolicyRows returns rows of a family with every combination of properties that policy
// depends on.
func PolicyRows(f proxy.Family) []*proxy.ServicePort {
	vip, pod, clients := netip.MustParseAddr("172.30.0.1"), "10.0.0.10:8080", "203.0.113.0/25"
	if f == proxy.IPv6 {
		vip, pod, clients = netip.MustParseAddr("fd00:172:30::1"), "[fd00:10::10]:8080", "2600:5200::/64"
	}
	list := []proxy.Endpoint{{Addr: netip.MustParseAddrPort(pod), Local: true}}
	var out []*proxy.ServicePort
	for i := range 1 << 6 {
		on := func(bit int) bool { return i>>bit&1 == 1 }
		sp := &proxy.ServicePort{Key: proxy.PortKey{Family: f, ServicePortName: proxy.ServicePortName{Name: fmt.Sprint(i), Protocol: proxy.TCP}}}
		sp.Internal, sp.External, sp.UsableSomewhere = proxy.Scope(i&1), proxy.Scope(i>>1&1), on(2)
		if on(3) {
			sp.AllowFrom = []netip.Prefix{netip.MustParsePrefix(clients)}
		}
		if on(4) {
			sp.Cluster = list
		}
		if on(4) && on(5) {
			sp.Local = list
		}
		at := vip
		for k := proxy.ClusterIP; k <= proxy.NodePort; k++ {
			if k == proxy.NodePort {
				at = f.Unspecified()
			}
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: k, Addr: netip.AddrPortFrom(at, uint16(80+int(k)))})
			at = at.Next()
		}
		out = append(out, sp)
	}
	return out
}
