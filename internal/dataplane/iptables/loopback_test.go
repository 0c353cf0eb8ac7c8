package iptables

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/localnet/localnettest"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// guarded is the programs of a host.
type guarded struct {
	ipt.Interface
	host *localnettest.Host
	d    *Dataplane
}

func (g *guarded) Open() proxy.Dataplane {
	programs := map[proxy.Family]ipt.Interface{proxy.IPv4: g}
	g.d = newDataplane(programs, g.host, mode.Settings{MasqueradeBit: 14, Families: []proxy.Family{proxy.IPv4}, Others: g.host.Traces}, 0)
	return g.d
}

func (g *guarded) Restore(ctx context.Context, input []byte) error {
	err := g.Interface.Restore(ctx, input)
	g.host.Check("a restore")
	return err
}

// Guarded reports whether the guard exists and INPUT jumps to its chain.
func (g *guarded) Guarded(want localnet.Guard) bool {
	tables, err := g.Save(g.host.Context())
	if err != nil {
		g.host.Fatal(err)
	}
	saved := indexChains(tables)
	chain, entry := saved[nodePortFilter], saved[chainRef{filter, "INPUT"}]
	return chain != nil && entry != nil && slices.Contains(chain.Rules, loopbackGuard(want)) && slices.Contains(entry.Rules, inward)
}

// inward adds the jump from INPUT to the chain of the guard.
const inward = `-m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS`

func (g *guarded) Prepare(ctx context.Context, opens bool) error {
	return g.d.prepare(ctx, opens)
}

func (g *guarded) State(at localnettest.NodePorts) *proxy.State {
	s := plainState(3)
	s.Node.LocalhostNodePorts, s.Node.NodePorts = at.Localhost, at.In
	return s
}

// flushed has another process flush table filter, after the daemon has ended.
func flushed(h *localnettest.Host) error {
	input := []byte("*filter\n-F INPUT\n-F KUBE-NODEPORTS\nCOMMIT\n")
	return errors.Join(localnettest.Killed(h), h.Mode.(*guarded).Interface.Restore(h.Context(), input))
}

// TestLoopbackTransitions goes from every state to every other. Tests of the clean-up cover the
// removal.
func TestLoopbackTransitions(t *testing.T) {
	localnettest.Run(t, func(h *localnettest.Host, setting string) {
		h.Settings = sysctltest.NewFake(map[string]string{localnet.Name: setting})
		h.Mode = &guarded{Interface: ipttest.NewFake(), host: h}
	}, localnettest.History{
		Name: "flushed, excluded at a restart", Setting: "0", Want: "0",
		Steps: []localnettest.Step{localnettest.Opened.Sync, flushed, localnettest.Closed.Sync},
	})
}

// TestPrepare does what --init-only does, on a host without rules and on one with a daemon's
// rules. These must stay, and the daemon must take over the guard.
func TestPrepare(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		prepare := func() {
			t.Helper()
			if err := d.prepare(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		noted := loopbackGuard(localnet.Guard{InForce: true, Noted: true})
		guarded := func() {
			t.Helper()
			for where, rule := range map[string]string{"filter KUBE-NODEPORTS ": noted, "filter INPUT ": inward} {
				n := 0
				for _, l := range saved(t, d) {
					if l == where+rule {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%q is %d times in %s", rule, n, where)
				}
			}
		}
		prepare()
		guarded()
		if !localnet.IsOn(d.sysctls) {
			t.Error("loopback is not open")
		}
		state := plainState(3)
		state.Node.LocalhostNodePorts = true
		proxytest.MustSync(t, d, state)
		guarded()
		before := saved(t, d)
		prepare()
		if diff := cmp.Diff(before, saved(t, d)); diff != "" {
			t.Errorf("rules of a daemon changed (-before +after):\n%s", diff)
		}
		if _, err := Cleanup(t.Context(), mode.Settings{}, nil); err != nil || localnet.IsOn(d.sysctls) {
			t.Errorf("after the cleanup loopback is open: %t, error %v", localnet.IsOn(d.sysctls), err)
		}
	})
}

// TestUnreadableTables has rules in our tables that iptables cannot list. Neither a Sync nor
// --init-only may duplicate rules or remove those of a daemon.
func TestUnreadableTables(t *testing.T) {
	for _, table := range []string{filter, nat} {
		t.Run(table, func(t *testing.T) {
			lab.Namespace(t)
			d, err := OpenVariant(t.Context(), mode.Settings{MasqueradeBit: 14}, ipt.NFT)
			if err != nil {
				t.Fatal(err)
			}
			f, state := d.families[0], plainState(3)
			state.Node.LocalhostNodePorts = true
			sync := func() error { return proxytest.Sync(t.Context(), d, state) }
			prepare := func() error { return d.prepare(t.Context(), true) }
			var want uses
			for i, step := range []func() error{sync, sync, sync, prepare} {
				if err := step(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				have, err := f.kernelUses(t.Context())
				if err != nil || f.contentsUnverified {
					t.Errorf("step %d: our own checks count as changes by another process: %t, error %v", i, f.contentsUnverified, err)
				}
				if i == 0 {
					want = have
					runHost(t, "nft", "add chain ip "+table+" THEIRS; add rule ip "+table+" THEIRS rt mtu 1000 accept")
				}
				if diff := cmp.Diff(want, have, cmp.AllowUnexported(chainRef{})); diff != "" {
					t.Errorf("step %d: rules in our chains, and jumps to them (-before +after):\n%s", i, diff)
				}
			}
		})
	}
}

// TestPrepareUnreadable checks that the guard is added to a chain of a daemon that has none, and
// that the daemon's rules stay.
func TestPrepareUnreadable(t *testing.T) {
	lab.Namespace(t)
	d, err := OpenVariant(t.Context(), mode.Settings{MasqueradeBit: 14}, ipt.NFT)
	if err != nil {
		t.Fatal(err)
	}
	state := everyState()
	state.Node.LocalhostNodePorts = false
	proxytest.MustSync(t, d, state)
	runHost(t, "nft", "add chain ip filter THEIRS; add rule ip filter THEIRS rt mtu 1000 accept")
	want := d.families[0].uses[nodePortFilter] + 1
	for range 2 {
		if err := d.prepare(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		have, err := d.families[0].kernelUses(t.Context())
		if err != nil || have[nodePortFilter] != want {
			t.Errorf("rules in chain KUBE-NODEPORTS, and jumps to it: %d, error %v; want %d", have[nodePortFilter], err, want)
		}
	}
}

// TestLoopbackIsGuarded has a NodePort on loopback addresses only. Packets of the node arrive.
// Packets of a neighbouring host do not, whatever their source, be it to the NodePort or to a
// socket.
func TestLoopbackIsGuarded(t *testing.T) {
	for _, v := range ipt.Variants() {
		t.Run(v.String(), func(t *testing.T) {
			l := lab.ForTest(t, lab.Config{})
			in := serveLoopback(t, l.Node(), v)
			nodePort, socket := netip.MustParseAddrPort("127.0.0.1:1025"), netip.MustParseAddrPort("127.0.0.1:4001")
			conformance.ForgeLoopback(t, l.Outside())
			for to, at := range map[string]netip.AddrPort{"NodePort": nodePort, "socket": socket} {
				conformance.SendDatagram(t, l.Outside(), "to the "+to, "203.0.113.2", at)
				conformance.SendDatagram(t, l.Outside(), "to the "+to+" from loopback", "127.0.0.2", at)
			}
			conformance.SendDatagram(t, l.Node(), "node's to the NodePort", "127.0.0.1", nodePort)
			conformance.SendDatagram(t, l.Node(), "node's to the socket", "192.168.0.2", socket)
			conformance.SendDatagram(t, l.Outside(), "last", "203.0.113.2", netip.MustParseAddrPort("192.168.0.2:4001"))
			if diff := cmp.Diff([]string{"node's to the NodePort", "node's to the socket", "last"}, conformance.ReceiveDatagrams(t, in, "last")); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// serveLoopback serves a Service whose NodePort is on loopback addresses only, and returns its
// endpoint.
func serveLoopback(t *testing.T, node *lab.Host, v ipt.Variant) (in net.PacketConn) {
	t.Helper()
	sp, s := plainRow(1, 1, 0), plainState(0)
	sp.Key.Protocol = proxy.UDP
	sp.Cluster[0] = proxy.Endpoint{Addr: netip.MustParseAddrPort("192.168.0.2:4001"), Local: true}
	s.Rows[sp.Key] = sp
	s.Node.LocalhostNodePorts, s.Node.NodePorts = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	if err := node.Do(func() error {
		d, err := OpenVariant(t.Context(), mode.Settings{MasqueradeBit: 14}, v)
		if err == nil {
			err = proxytest.Sync(t.Context(), d, s)
		}
		if err == nil {
			in, err = net.ListenPacket("udp4", ":4001")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	return in
}
