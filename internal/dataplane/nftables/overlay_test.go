package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// overlays returns an overlay for each way in which other modes use the rules.
func overlays() map[string]Overlay {
	external := func(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool {
		return r.Scope == sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere].Scope
	}
	return map[string]Overlay{
		"left alone": {
			Table: "sluice-ipvs", Takes: external, OnLink: true,
			NodePortsTo: map[proxy.Family]netip.Addr{proxy.IPv4: netip.MustParseAddr("192.0.0.8"), proxy.IPv6: netip.MustParseAddr("100::8")},
		},
		"sockets": {
			Table: "sluice-userspace", Takes: func(*proxy.ServicePort, proxy.Frontend, proxy.Route) bool { return true },
			Sockets: &Sockets{Mark: 1 << 12, Own: 1 << 13, Ports: [2][2]uint16{{1, 2}, {3, 4}}},
		},
		"untracked":                              {Table: tableName, Untracked: untracked(1)},
		"untracked, the node has many addresses": {Table: tableName, Untracked: untracked(200)},
	}
}

// untracked returns an Untracked for pods in whose prefixes the node has own addresses of each
// family.
func untracked(own int) func() Untracked {
	u := Untracked{
		Within: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/17"), netip.MustParsePrefix("fd00:10::/64")},
		Begun:  true,
	}
	for i := range own {
		u.Except = append(u.Except, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10::%x", i)))
	}
	return func() Untracked { return u }
}

// TestOverlaysInTheKernel writes random rows for each overlay. A second Sync must write
// nothing, the nft program must be able to list everything, and Apply must have the same result
// as Sync.
func TestOverlaysInTheKernel(t *testing.T) {
	for name, o := range overlays() {
		t.Run(name, func(t *testing.T) {
			lab.Namespace(t)
			if can, err := o.Probe(t.Context(), mode.Settings{MasqueradeBit: 14}); err != nil || len(can) != 2 {
				t.Fatalf("probe: %v, error %v", can, err)
			}
			conn, err := nft.Open()
			if err != nil {
				t.Fatal(err)
			}
			c := &counter{Interface: conn}
			d := o.New(c, mode.Settings{MasqueradeBit: 14})
			t.Cleanup(func() { d.Close() })
			r := rand.New(rand.NewPCG(1, 11))
			s := proxy.NewState()
			s.Node = testNode()
			if _, err := d.Sync(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			for i := range 60 {
				sp := randomRow(r, i)
				s.Rows[sp.Key] = sp
				if _, err := d.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{sp.Key}}); err != nil {
					t.Fatal(err)
				}
			}
			for key := range maps.Clone(s.Rows) {
				if r.IntN(3) == 0 {
					delete(s.Rows, key)
					if _, err := d.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{key}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			before := dump(t, c, d)
			c.reset()
			if refused, err := d.Sync(t.Context(), s); err != nil || len(refused) > 0 {
				t.Fatalf("refused %v, error %v", refused, err)
			}
			for _, o := range slices.Concat(c.commits...) { // classes that nothing leads to any more may go
				if o.Kind == nft.AddRule {
					t.Errorf("a Sync after Applies did: %v", &o)
				}
			}
			if diff := cmp.Diff(before, dump(t, c, d)); diff != "" {
				t.Errorf("a Sync after Applies changed (-before +after):\n%s", diff)
			}
			wantIdle(t, c, d, s)
			listable(t)
		})
	}
}

// TestTakenRowsHaveNoEndpointElements checks that endpoints of rows that the overlay takes
// cost nothing.
func TestTakenRowsHaveNoEndpointElements(t *testing.T) {
	for name, o := range overlays() {
		if o.Takes == nil {
			continue
		}
		c := &counter{Interface: nfttest.NewFake()}
		d := o.New(c, mode.Settings{MasqueradeBit: 14})
		s := plainState(10)
		if _, err := d.Sync(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		c.reset()
		sp := plainRow(3, 10, 7)
		s.Rows[sp.Key] = sp
		if _, err := d.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{sp.Key}}); err != nil {
			t.Fatal(err)
		}
		if n := c.reset(); n != 0 {
			t.Errorf("%s: an endpoint of a Service that the overlay takes took %d operations; want none", name, n)
		}
	}
}

// TestNodePortsYieldToAnotherProxy starts another proxy, which marks packets and translates
// none, after Leave of a mode that translates NodePorts to its own address.
func TestNodePortsYieldToAnotherProxy(t *testing.T) {
	h := newHost(t)
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	o := overlays()["left alone"]
	o.NodePortsTo = map[proxy.Family]netip.Addr{proxy.IPv4: h.two.Addr()}
	d := o.New(conn, mode.Settings{MasqueradeBit: 14, Families: []proxy.Family{proxy.IPv4}})
	t.Cleanup(func() { d.Close() })
	s := proxy.NewState()
	s.Node = &proxy.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	row := plainRow(1, 1, 0)
	row.Frontends = []proxy.Frontend{{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(proxy.IPv4.Unspecified(), h.one.Port())}}
	s.Rows[row.Key] = row
	proxytest.MustSync(t, d, s)
	atNode := &proxy.ServicePort{Frontends: []proxy.Frontend{{Addr: h.one}}}
	h.expect(atNode, netip.AddrPort{}, "while we are there, and no virtual server is")
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.expect(atNode, netip.AddrPort{}, "while nobody is there")
	h.run(`nft 'add table ip theirs; add chain ip theirs out { type nat hook output priority -100; }; add rule ip theirs out tcp dport 8080 meta mark set meta mark or 0x4000'`)
	h.expect(atNode, h.one, "when another proxy is there")
}
