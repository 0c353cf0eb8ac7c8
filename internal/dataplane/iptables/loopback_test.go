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
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// guardedHost wraps the programs and the settings of a host. After every change it checks that
// loopback is not open without a guard, because a daemon may be killed at any point.
type guardedHost struct {
	ipt.Interface
	*sysctltest.Fake
	t      *testing.T
	others localnet.Traces
	own    bool // the setting is the administrator's own
	d      *Dataplane
}

// restart replaces the dataplane by a new one, as after a restart of the daemon.
func (h *guardedHost) restart() {
	programs := map[proxy.Family]ipt.Interface{proxy.IPv4: h}
	h.d = newDataplane(programs, h, mode.Settings{
		MasqueradeBit: 14, Families: []proxy.Family{proxy.IPv4},
		Others: func(context.Context) (localnet.Traces, error) { return h.others, nil },
	}, 0)
}

func (h *guardedHost) Restore(ctx context.Context, input []byte) error {
	err := h.Interface.Restore(ctx, input)
	h.check("a restore")
	return err
}

func (h *guardedHost) Write(name, value string) error {
	err := h.Fake.Write(name, value)
	h.check("writing " + value)
	return err
}

func (h *guardedHost) check(after string) {
	h.t.Helper()
	if !h.own && localnet.IsOn(h) && !h.guarded(localnet.Guard{InForce: true, Noted: true}) && !h.others.Guarded {
		h.t.Errorf("after %s loopback is open and has no guard with the note", after)
	}
}

// guarded reports whether the guard exists and INPUT jumps to its chain.
func (h *guardedHost) guarded(g localnet.Guard) bool {
	h.t.Helper()
	tables, err := h.Save(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	saved := indexChains(tables)
	chain, entry := saved[nodePortFilter], saved[chainRef{filter, "INPUT"}]
	return chain != nil && entry != nil && slices.Contains(chain.Rules, loopbackGuard(g)) && slices.Contains(entry.Rules, inward)
}

// inward adds the jump from INPUT to the chain of the guard.
const inward = `-m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS`

func (h *guardedHost) node(opens bool) *proxy.Node {
	n := *testNode()
	n.LocalhostNodePorts = true
	if !opens {
		n.NodePorts = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	return &n
}

func (h *guardedHost) sync(opens bool) func() error {
	return func() error {
		s := plainState(3)
		s.Node = h.node(opens)
		return proxytest.Sync(h.t.Context(), h.d, s)
	}
}

func (h *guardedHost) apply(opens bool) func() error {
	return func() error { return proxytest.Apply(h.t.Context(), h.d, &proxy.Delta{Node: h.node(opens)}) }
}

func (h *guardedHost) prepare(opens bool) func() error {
	return func() error {
		defer h.restart()
		return h.d.prepare(h.t.Context(), opens)
	}
}

func (h *guardedHost) killed() error {
	h.restart()
	return nil
}

// flushed has another process flush table filter, after the daemon has ended.
func (h *guardedHost) flushed() error {
	h.restart()
	return h.Interface.Restore(h.t.Context(), []byte("*filter\n-F INPUT\n-F KUBE-NODEPORTS\nCOMMIT\n"))
}

// TestLoopbackTransitions goes from every state to every other. Tests of the clean-up cover the
// removal.
func TestLoopbackTransitions(t *testing.T) {
	plain, noted := localnet.Guard{InForce: true}, localnet.Guard{InForce: true, Noted: true}
	type steps []func() error
	tests := []struct {
		name    string
		setting string
		others  localnet.Traces
		refuse  bool
		steps   func(*guardedHost) steps
		want    string // of the setting
		guard   localnet.Guard
	}{
		{name: "opened", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(true)} }},
		{name: "excluded at a restart", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(false)} }},
		{name: "excluded live", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "included again live", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false), h.apply(true)} }},
		{name: "the administrator's", setting: "1", want: "1", guard: plain, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(true)} }},
		{name: "the administrator's, excluded live", setting: "1", want: "1", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "the administrator's, excluded at a restart", setting: "1", want: "1", steps: func(h *guardedHost) steps { return steps{h.sync(false), h.killed, h.sync(false)} }},
		{name: "the administrator's, included at a restart", setting: "1", want: "1", guard: plain, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false), h.killed, h.sync(true)} }},
		{name: "flushed, excluded at a restart", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.flushed, h.sync(false)} }},
		{name: "the nftables mode's", setting: "1", others: localnet.Traces{Guarded: true, Noted: true}, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true)} }},
		{name: "the nftables mode's, not wanted", setting: "1", others: localnet.Traces{Guarded: true, Noted: true}, want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(false)} }},
		{name: "read-only, excluded live", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "read-only, excluded at a restart", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(false)} }},
		{name: "prepared", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.prepare(true)} }},
		{name: "prepared, a daemon that may not write", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.prepare(true), h.sync(true)} }},
		{name: "prepared where it was excluded", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(false), h.killed, h.prepare(true)} }},
		{name: "prepared to be excluded", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.prepare(false), h.sync(false)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &guardedHost{
				Interface: ipttest.NewFake(), Fake: sysctltest.NewFake(map[string]string{localnet.Name: tt.setting}),
				t: t, others: tt.others, own: tt.setting == "1",
			}
			h.restart()
			for i, step := range tt.steps(h) {
				if i > 0 && tt.refuse {
					h.Refuse(localnet.Name, errors.New("read-only file system"))
				}
				if err := step(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			if got, _ := h.Read(localnet.Name); got != tt.want {
				t.Errorf("the setting is %s, want %s", got, tt.want)
			}
			for _, g := range []localnet.Guard{plain, noted} {
				if h.guarded(g) != (g == tt.guard) {
					t.Errorf("guard %+v is there: %t", g, !(g == tt.guard))
				}
			}
		})
	}
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
		if err := proxytest.Sync(t.Context(), d, state); err != nil {
			t.Fatal(err)
		}
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
	if err := proxytest.Sync(t.Context(), d, state); err != nil {
		t.Fatal(err)
	}
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
	lab.Require(t)
	for _, v := range ipt.Variants() {
		t.Run(v.String(), func(t *testing.T) {
			l, err := lab.New(lab.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
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
