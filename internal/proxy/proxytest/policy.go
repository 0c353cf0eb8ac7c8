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
			out = append(out, &proxy.Node{MasqueradeAll: all, LocalPods: pods})
		}
	}
	return out
}

// PolicyRows returns rows of a family with every combination of properties that policy
// depends on.
func PolicyRows(f proxy.Family) []*proxy.ServicePort {
	addr := netip.AddrPortFrom(f.Unspecified().Next(), 80)
	list := []proxy.Endpoint{{Addr: addr, Local: true}}
	var out []*proxy.ServicePort
	for i := range 1 << 6 {
		on := func(bit int) bool { return i>>bit&1 == 1 }
		sp := &proxy.ServicePort{Key: proxy.PortKey{Family: f, ServicePortName: proxy.ServicePortName{Name: fmt.Sprint(i), Protocol: proxy.TCP}}}
		sp.Internal, sp.External, sp.UsableSomewhere = proxy.Scope(i&1), proxy.Scope(i>>1&1), on(2)
		if on(3) {
			sp.AllowFrom = []netip.Prefix{netip.PrefixFrom(addr.Addr(), 16)}
		}
		if on(4) {
			sp.Cluster = list
		}
		if on(4) && on(5) {
			sp.Local = list
		}
		for k := proxy.ClusterIP; k <= proxy.NodePort; k++ {
			sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: k, Addr: netip.AddrPortFrom(addr.Addr(), uint16(80+int(k)))})
		}
		out = append(out, sp)
	}
	return out
}
