package hnstest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/kernel/hns"
)

// describeEndpoint returns an endpoint as text, without its ID.
func describeEndpoint(e hns.Endpoint) string {
	where := "local"
	if e.Remote {
		where = "remote"
	}
	return strings.TrimSpace(fmt.Sprintf("endpoint %s %v %s %s", where, e.Addrs, e.MAC, orNone("on ", e.Provider)))
}

// describeLoadBalancer returns a load balancer as text, with the addresses of its endpoints.
func (f *Fake) describeLoadBalancer(l hns.LoadBalancer) string {
	var to []string
	for _, id := range l.Endpoints {
		to = append(to, cmp.Or(strings.Trim(fmt.Sprint(f.endpoints[id].Addrs), "[]"), "gone"))
	}
	slices.Sort(to)
	at := netip.AddrPortFrom(l.VIP, l.ExternalPort).String()
	if !l.VIP.IsValid() {
		at = fmt.Sprintf("node port %d (IPv6: %t)", l.ExternalPort, l.Family6)
	}
	return fmt.Sprintf("load balancer %s protocol %d to %v port %d%s [%v]", at, l.Protocol, to, l.InternalPort, orNone(" from ", l.SourceVIP), l.Flags)
}

func orNone(before string, a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return before + a.String()
}
