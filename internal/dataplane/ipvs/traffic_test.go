package ipvs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// TestTraffic tells what virtual servers were used for, and lists the real servers
// of those only where something has happened.
func TestTraffic(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	var rows []*proxy.ServicePort
	for n := range 100 {
		rows = append(rows, service(n+1, proxy.TCP, one, two))
	}
	h.sync(d, rows...)
	stats := ipvs.Stats{Connections: 3, Packets: [2]uint64{30, 20}, Bytes: [2]uint64{3000, 2000}}
	first := netip.MustParseAddrPort(one)
	want := func(lists int, want map[netip.AddrPort]proxy.Traffic) {
		t.Helper()
		h.servers.Reset()
		got := map[netip.AddrPort]proxy.Traffic{}
		err := d.Traffic(t.Context(), func(s proxy.Sample) {
			if s.Protocol == proxy.TCP && s.Endpoint == first {
				got[s.Frontend] = s.Traffic
			}
		})
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("error %v, traffic mismatch (-want +got):\n%s", err, diff)
		}
		if c, _ := h.servers.Reset(); c.Lists != lists {
			t.Errorf("%d lists; want %d", c.Lists, lists)
		}
	}
	traffic := func(active uint64) proxy.Traffic {
		return proxy.Traffic{Connections: 3, Active: active, Packets: stats.Packets, Bytes: stats.Bytes}
	}
	want(1, map[netip.AddrPort]proxy.Traffic{})
	a, b := at(rows[3]), at(rows[7])
	h.servers.Carry(a, first, 2, stats)
	h.servers.Carry(b, first, 0, stats)
	want(3, map[netip.AddrPort]proxy.Traffic{a.Addr: traffic(2), b.Addr: traffic(0)})
	h.servers.Carry(a, first, 0, stats)
	want(2, map[netip.AddrPort]proxy.Traffic{a.Addr: traffic(0), b.Addr: traffic(0)}) // its connections have ended
	want(1, map[netip.AddrPort]proxy.Traffic{a.Addr: traffic(0), b.Addr: traffic(0)})
	h.apply(d, rows[3], nil)
	want(1, map[netip.AddrPort]proxy.Traffic{b.Addr: traffic(0)})
}
