package ipvs

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// onKernelLinks returns a host whose links are the kernel's, in a namespace of its own,
// with a link that has some addresses; and opens a dataplane there.
func onKernelLinks(t *testing.T, addrs ...string) (*host, *Dataplane, netlink.Link) {
	lab.Namespace(t)
	ipvstest.Require(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	eth := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth7"}}
	err := netlink.LinkAdd(eth)
	if err == nil {
		err = netlink.LinkSetUp(eth)
	}
	for _, text := range addrs {
		a, failed := netlink.ParseAddr(text)
		if failed != nil {
			t.Fatal(failed)
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err == nil {
			err = netlink.AddrAdd(eth, a)
		}
	}
	dummy, failed := link.OpenDummy(linkName)
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	t.Cleanup(func() { dummy.Close() })
	h := newHost(t)
	d := h.open(mode.IPVS{})
	d.kernel.link, d.kernel.addrs = dummy, link.Conn{}.Occupied
	return h, d, eth
}

// external returns a row with external IPs and an endpoint.
func external(addrs ...string) *proxy.ServicePort {
	sp := service(1, proxy.TCP, one)
	if sp.Key.Family = proxy.FamilyOf(netip.MustParseAddr(addrs[0])); sp.Key.Family == proxy.IPv6 {
		sp.Cluster[0].Addr = netip.MustParseAddrPort("[2001:db8::1]:80")
	}
	sp.Frontends = nil
	for _, a := range addrs {
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 80)})
	}
	return sp
}

// TestLinkLocalExternalIP checks that a link-local address is served like any other, and
// gone with its Service.
func TestLinkLocalExternalIP(t *testing.T) {
	for _, a := range []string{"169.254.169.254", "fe80::5"} {
		t.Run(a, func(t *testing.T) {
			h, d, _ := onKernelLinks(t)
			sp := external(a)
			h.sync(d, sp)
			h.sync(d, sp)
			h.wantReals(at(sp), map[string]uint32{sp.Cluster[0].Addr.String(): 1})
			h.sync(d)
			h.wantReals(at(sp), nil)
			if has, err := d.kernel.link.Has(netip.MustParseAddr(a)); has || err != nil {
				t.Errorf("packets to it are delivered here without a Service: %t, error %v", has, err)
			}
		})
	}
}

// TestAddressOfANetwork checks that an external IP which is a broadcast or anycast address
// of the node's networks is left to the rules: on our link it would not serve.
func TestAddressOfANetwork(t *testing.T) {
	for networks, addrs := range map[[2]string][]string{
		{"198.51.100.7/24", "203.0.113.7/24"}:    {"198.51.100.255", "203.0.113.255"},
		{"2001:db8:1::7/64", "2001:db8:2::7/64"}: {"2001:db8:1::", "2001:db8:2::"},
	} {
		t.Run(addrs[0], func(t *testing.T) {
			h, d, _ := onKernelLinks(t, networks[:]...)
			h.sync(d)
			sp := external(addrs...)
			if err := h.add(d, sp); err != nil {
				t.Error(err)
			}
			h.sync(d, sp)
			if found, err := d.Verify(t.Context(), sp.Key); len(found) > 0 || err != nil {
				t.Errorf("differs after a Sync: %v, error %v", found, err)
			}
			on, routed, err := d.kernel.link.List()
			for _, a := range append(on, routed...) {
				if slices.Contains(addrs, a.String()) || err != nil {
					t.Errorf("%v is on the link, error %v", a, err)
				}
			}
		})
	}
}

// TestLocalRouteOfAnAgent checks that nothing is to be repaired where an agent of the cloud
// has added a local route for the address of a load balancer, too.
func TestLocalRouteOfAnAgent(t *testing.T) {
	h, d, eth := onKernelLinks(t)
	sp := external("198.51.100.9")
	if err := netlink.RouteAdd(&netlink.Route{
		LinkIndex: eth.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 9).To4(), Mask: net.CIDRMask(32, 32)},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: 66, // as Google's agent does
	}); err != nil {
		t.Fatal(err)
	}
	h.sync(d, sp)
	if found, err := d.Verify(t.Context(), sp.Key); len(found) > 0 || err != nil {
		t.Errorf("differs after a Sync: %v, error %v", found, err)
	}
}

// TestLinkIsReplaced by one of another type, while addresses are still to be added.
func TestLinkIsReplaced(t *testing.T) {
	_, d, _ := onKernelLinks(t)
	state := stateOf(service(1, proxy.TCP, one))
	proxytest.MustSync(t, d, state)
	l, err := netlink.LinkByName(linkName)
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err == nil {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName}, PeerName: "peer"})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("link %s is not a dummy link but of type veth: rename or delete it", linkName)
	if err := proxytest.Sync(t.Context(), d, state); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	d.addRouted(t.Context()) // as Run does; it must not panic
}
