package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// add applies a new row, and returns why it is refused.
func (h *host) add(d *Dataplane, sp *proxy.ServicePort) error {
	return proxytest.Apply(h.t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: sp}}})
}

func frontend(kind proxy.Kind, at string) proxy.Frontend {
	return proxy.Frontend{Kind: kind, Addr: netip.MustParseAddrPort(at)}
}

// TestAliasAsExternalIP refuses a row that has the alias as an external IP, at which the
// NodePorts of all Services are.
func TestAliasAsExternalIP(t *testing.T) {
	h := newHost(t)
	d, victim, hostile := h.open(mode.IPVS{}), service(1, proxy.TCP, one), service(2, proxy.TCP, two)
	victim.Frontends = append(victim.Frontends, frontend(proxy.NodePort, "0.0.0.0:30080"))
	hostile.Frontends = append(hostile.Frontends, frontend(proxy.ExternalIP, "192.0.0.8:30080"))
	h.sync(d, victim)
	if err := h.add(d, hostile); err == nil {
		t.Error("it is not refused")
	}
	h.wantReals(ipvs.Server{Protocol: uint8(proxy.TCP), Addr: netip.MustParseAddrPort("192.0.0.8:30080")}, map[string]uint32{one: 1})
}

// TestTooManyRealServers refuses a row as the rules do, that a tenant does not use up the
// memory of every node.
func TestTooManyRealServers(t *testing.T) {
	h := newHost(t)
	sp := service(1, proxy.TCP)
	for i := range 600 {
		at := func(a, b byte) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{a, b, byte(i >> 8), byte(i)}), 80)
		}
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: at(10, 1)})
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: at(198, 51)})
	}
	if refused, err := h.open(mode.IPVS{}).Sync(t.Context(), stateOf(sp)); len(refused) != 1 || err != nil {
		t.Errorf("refused %v, error %v; want one row", refused, err)
	}
}

// TestRefusedByTheRules checks that a row which only the rules refuse has no servers,
// which would answer whoever asks.
func TestRefusedByTheRules(t *testing.T) {
	sp := service(1, proxy.TCP)
	sp.External, sp.Internal, sp.Affinity = proxy.ScopeLocal, proxy.ScopeCluster, 1e9
	sp.Frontends = []proxy.Frontend{frontend(proxy.LoadBalancer, "198.51.100.1:80")}
	sp.AllowFrom = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for i := range 9000 { // more than the rules remember clients for
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)})
	}
	sp.Local = sp.Cluster[:100]
	for name, write := range map[string]func(h *host, d *Dataplane) error{
		"Sync": func(h *host, d *Dataplane) error { return proxytest.Sync(h.t.Context(), d, stateOf(sp)) },
		"Apply": func(h *host, d *Dataplane) error {
			h.sync(d)
			return h.add(d, sp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if err := write(h, h.open(mode.IPVS{})); err == nil {
				t.Error("it is not refused")
			}
			h.wantReals(at(sp), nil)
		})
	}
}

// TestRefusedChange checks that nothing of a refused change stays in the servers that the
// row had already.
func TestRefusedChange(t *testing.T) {
	h := newHost(t)
	d, sp, theirs := h.open(mode.IPVS{}), service(1, proxy.UDP, one), service(2, proxy.UDP, two)
	h.sync(d, sp)
	h.do(ipvs.Op{Server: at(theirs), Settings: ipvs.Settings{Scheduler: "rr"}})
	more := service(1, proxy.UDP, one, two)
	more.Cluster[0].Weight = 7
	more.Frontends = append(more.Frontends, theirs.Frontends[0])
	if err := proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: more}}}); err == nil {
		t.Error("it is not refused")
	}
	h.wantReals(at(sp), map[string]uint32{one: 1})
	if is, err := h.servers.Servers(t.Context()); is[at(sp)].Scheduler != "rr" || err != nil {
		t.Errorf("scheduler %s, error %v", is[at(sp)].Scheduler, err)
	}
}

// TestStaleAddressIsTheLast checks that what a first Sync routes stays although the kernel
// removes all routes with the last address of the link, here one that another cluster left.
func TestStaleAddressIsTheLast(t *testing.T) {
	h := newHost(t)
	sp := service(1, proxy.TCP, one)
	if err := h.link.Create(); err != nil {
		t.Fatal(err)
	}
	h.link.Add(netip.MustParseAddr("10.97.0.1"))
	if err := proxytest.Sync(t.Context(), h.open(mode.IPVS{}), stateOf(sp)); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{at(sp).Addr.Addr(), aliases[proxy.IPv4]} {
		if has, err := h.link.Has(a); !has || err != nil {
			t.Errorf("packets to %v are delivered here: %t, error %v", a, has, err)
		}
	}
}

// TestLinkGoes asks for a Sync, and blames no row, when somebody has deleted the link.
func TestLinkGoes(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	h.sync(d)
	h.link.Refuse(netip.MustParseAddr("10.96.0.2"), unix.ENODEV)
	if err := h.add(d, service(2, proxy.TCP, one)); !errors.Is(err, proxy.ErrNeedSync) {
		t.Errorf("error %v, want %v", err, proxy.ErrNeedSync)
	}
}

// TestNoteIsOverwritten restores the sysctls although somebody gave the link another alias.
func TestNoteIsOverwritten(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	h.sync(d)
	if err := h.link.SetNote(link.Note{}); err != nil {
		t.Fatal(err)
	}
	h.sync(d)
	if _, err := h.cleanup(false); err != nil {
		t.Error(err)
	}
	for name := range wantedSettings(false) {
		if v, err := h.settings.Read(name); v != "0" || err != nil {
			t.Errorf("%s is %s after the clean-up, error %v", name, v, err)
		}
	}
}

// interrupted fails one listing of real servers.
type interrupted struct {
	ipvs.Interface
	after int // so many
}

func (i *interrupted) Reals(ctx context.Context, s ipvs.Server) ([]ipvs.RealState, error) {
	if i.after--; i.after == -1 {
		return nil, errBroken
	}
	return i.Interface.Reals(ctx, s)
}

// TestDrainIsInterrupted removes all servers without connections in the end.
func TestDrainIsInterrupted(t *testing.T) {
	h := newHost(t)
	d := h.open(mode.IPVS{})
	var rows []*proxy.ServicePort
	for i := range 3 {
		rows = append(rows, service(i, proxy.TCP, one, two))
	}
	h.sync(d, rows...)
	for i := range rows {
		h.apply(d, rows[i], service(i, proxy.TCP, one))
	}
	d.kernel.servers = &interrupted{h.servers, 2}
	if err := d.drain(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want %v", err, errBroken)
	}
	if err := d.drain(t.Context()); err != nil {
		t.Error(err)
	}
	for _, sp := range rows {
		h.wantReals(at(sp), map[string]uint32{one: 1})
	}
}
