package ebpf_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// costRow returns a port of Service number i with the given pods as endpoints.
func costRow(i int, p proxy.Protocol, pods ...int) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:             proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "cost", Name: fmt.Sprint(i), Protocol: p}},
		Frontends:       []proxy.Frontend{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)}), 80)}},
		UsableSomewhere: true,
	}
	for _, n := range pods {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 8080)
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: a})
	}
	return sp
}

// onThisNode makes the last endpoint of a row local.
func onThisNode(sp *proxy.ServicePort) *proxy.ServicePort {
	last := &sp.Cluster[len(sp.Cluster)-1]
	last.Local = true
	sp.Local = []proxy.Endpoint{*last}
	return sp
}

func draining(sp *proxy.ServicePort, from *proxy.ServicePort) *proxy.ServicePort {
	sp.Draining = []netip.AddrPort{from.Cluster[len(from.Cluster)-1].Addr}
	return sp
}

func count(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// TestCost counts the map entries that a change writes, with few and many other Services.
func TestCost(t *testing.T) {
	const tcp, udp = proxy.TCP, proxy.UDP
	many := func(last int) *proxy.ServicePort {
		return costRow(50, tcp, append(count(4_999), last)...)
	}
	cases := []struct {
		name     string
		old, cur *proxy.ServicePort // nil if there is none
		want     int
	}{
		{"endpoint replaced", costRow(50, tcp, 1, 2, 3), costRow(50, tcp, 1, 2, 9), 1},
		{"endpoint replaced, UDP", costRow(50, udp, 1, 2, 3), costRow(50, udp, 1, 2, 9), 1},
		{"endpoint replaced, which is draining, UDP", costRow(50, udp, 1, 2, 3), draining(costRow(50, udp, 1, 2, 9), costRow(50, udp, 1, 2, 3)), 2},
		{"local endpoint replaced", onThisNode(costRow(50, tcp, 1, 2, 3)), onThisNode(costRow(50, tcp, 1, 2, 9)), 1},
		{"local endpoint replaced, UDP, which has both lists", onThisNode(costRow(50, udp, 1, 2, 3)), onThisNode(costRow(50, udp, 1, 2, 9)), 2},
		{"endpoint added", costRow(50, tcp, 1, 2, 3), costRow(50, tcp, 1, 2, 3, 4), 2},
		{"last endpoint removed", costRow(50, tcp, 1, 2, 3, 4), costRow(50, tcp, 1, 2, 3), 2},
		{"first endpoint removed", costRow(50, tcp, 1, 2, 3, 4), costRow(50, tcp, 4, 2, 3), 3},
		{"one of 5,000 replaced", many(5_000), many(6_000), 1},
		{"Service added", nil, costRow(50, tcp, 1, 2, 3), 4},
		{"Service removed", costRow(50, tcp, 1, 2, 3), nil, 4},
		{"nothing", costRow(50, tcp, 1, 2, 3), costRow(50, tcp, 1, 2, 3), 0},
	}
	h := newHost(t)
	h.start(nil)
	for _, n := range []int{100, 2_000} {
		var others []*proxy.ServicePort
		for i := range n {
			others = append(others, costRow(1000+i, tcp, 1, 2, 3))
		}
		for _, c := range cases {
			if got := h.writes(others, c.old, c.cur); got != c.want {
				t.Errorf("%s with %d Services: %d entries written; want %d", c.name, n, got, c.want)
			}
		}
	}
}

// TestCostOfCIDRs changes the CIDRs of Services, which only the row with an endpoint within
// them depends on, with few and many other Services. Nothing is listed, and a Sync that
// follows finds nothing to correct.
func TestCostOfCIDRs(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	within := costRow(50, proxy.TCP, 1, 200<<16, 200<<16+1) // the last two in 10.200.0.0/16
	for _, n := range []int{100, 2_000} {
		rows := []*proxy.ServicePort{within}
		for i := range n {
			rows = append(rows, costRow(1000+i, proxy.TCP, 1, 2, 3))
		}
		h.must(h.sync(rows...))
		h.d.Writes()
		h.d.Reads()
		cidrs := []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("172.30.0.0/16")}
		h.must(h.lab.Node().Do(func() error { return proxytest.Apply(h.Context(), h.d, &proxy.Delta{CIDRs: &cidrs}) }))
		if writes, reads := h.d.Writes(), h.d.Reads(); writes != 2 || reads != 0 {
			t.Errorf("with %d Services: %d entries written and %d read; want 2 and none", n, writes, reads)
		}
		s := proxy.NewState()
		s.Node, s.CIDRs = h.node, cidrs
		for _, r := range rows {
			s.Rows[r.Key] = r
		}
		h.must(h.lab.Node().Do(func() error { return proxytest.Sync(h.Context(), h.d, s) }))
		if writes := h.d.Writes(); writes != 0 {
			t.Errorf("with %d Services: a Sync corrects %d entries", n, writes)
		}
	}
}

// writes returns how many entries a change of one row writes.
func (h *host) writes(others []*proxy.ServicePort, old, cur *proxy.ServicePort) int {
	h.Helper()
	before := others
	if old != nil {
		before = append(slices.Clone(others), old)
	}
	h.must(h.sync(before...))
	step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}
	if cur == nil {
		step = &proxy.Delta{Removes: []*proxy.ServicePort{old}}
	}
	h.d.Writes()
	h.must(h.lab.Node().Do(func() error { return proxytest.Apply(h.Context(), h.d, step) }))
	return h.d.Writes()
}
