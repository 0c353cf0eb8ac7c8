package ipvs

import (
	"context"
	"net/netip"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/kernel/link/linktest"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// host is a host in memory.
type host struct {
	t        *testing.T
	servers  *ipvstest.Fake
	link     *linktest.Dummy
	settings *sysctltest.Fake
	rules    *nfttest.Fake
	other    []netip.Addr // addresses on other links
	relays   bool         // a daemon in mode userspace is there
}

func newHost(t *testing.T) *host {
	values := map[string]string{}
	for name := range wantedSettings(true) {
		values[name] = "0"
	}
	return &host{t, ipvstest.NewFake("rr", "wrr", "lc", "sh", "mh"), &linktest.Dummy{}, sysctltest.NewFake(values), nfttest.NewFake(), nil, false}
}

func (h *host) kernel() kernel {
	return kernel{h.servers, h.link, h.settings, func() ([]netip.Addr, error) {
		on, _, err := h.link.List()
		return append(on, h.other...), err
	}, func() (bool, error) { return h.relays, nil }, h.servers}
}

// open opens a dataplane as a daemon that starts.
func (h *host) open(options mode.IPVS) *Dataplane {
	s := mode.Settings{MasqueradeBit: 14, IPVS: options}
	d := newDataplane(h.kernel(), s)
	d.Dataplane = d.overlay().New(h.rules, s)
	return d
}

// sync and apply ask for a state, or a step, and expect nothing to be refused.
func (h *host) sync(d *Dataplane, rows ...*proxy.ServicePort) {
	h.t.Helper()
	if err := proxytest.Sync(h.t.Context(), d, stateOf(rows...)); err != nil {
		h.t.Fatal(err)
	}
	d.addRouted(h.t.Context()) // as Run does
	h.servers.Reset()
	h.link.Reset()
	h.rules.Reset()
}

func (h *host) apply(d *Dataplane, old, cur *proxy.ServicePort) {
	h.t.Helper()
	step := &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}
	if cur == nil {
		step = &proxy.Delta{Removes: []*proxy.ServicePort{old}}
	}
	if err := proxytest.Apply(h.t.Context(), d, step); err != nil {
		h.t.Fatal(err)
	}
}

// do does to a server what another program would do.
func (h *host) do(o ipvs.Op) {
	h.t.Helper()
	if refused, err := h.servers.Do(h.t.Context(), []ipvs.Op{o}); len(refused) > 0 || err != nil {
		h.t.Fatal(refused, err)
	}
}

// reals returns the weights of a virtual server's real servers; nil: there is no
// such server.
func (h *host) reals(s ipvs.Server) map[string]uint32 {
	h.t.Helper()
	all, err := h.servers.Servers(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	if _, ok := all[s]; !ok {
		return nil
	}
	out := map[string]uint32{}
	reals, err := h.servers.Reals(context.Background(), s)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range reals {
		out[r.Addr.String()] = r.Weight
	}
	h.servers.Reset()
	return out
}

func stateOf(rows ...*proxy.ServicePort) *proxy.State {
	s := proxy.NewState()
	s.Node = &proxy.Node{Name: "node-1", NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	for _, r := range rows {
		s.Rows[r.Key] = r
	}
	return s
}

// service returns a row: a ClusterIP 10.96.x.y:80 and endpoints.
func service(n int, p proxy.Protocol, endpoints ...string) *proxy.ServicePort {
	vip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	sp := &proxy.ServicePort{
		Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: vip.String(), Protocol: p}},
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(vip, 80)}},
	}
	for _, e := range endpoints {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return sp
}

func at(sp *proxy.ServicePort) ipvs.Server {
	return ipvs.Server{Protocol: uint8(sp.Key.Protocol), Addr: sp.Frontends[0].Addr}
}
