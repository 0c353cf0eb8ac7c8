package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// guardedHost is nf_tables and the host's sysctls. After every change, at which a daemon may
// be killed, it checks that loopback addresses are not reachable without a guard.
type guardedHost struct {
	nft.Interface
	*sysctltest.Fake
	t      *testing.T
	others localnet.Traces
	own    bool // the setting is the administrator's own
	most   int  // operations in a batch; 0: any number
	d      *Dataplane
}

func newGuardedHost(t *testing.T, setting string) *guardedHost {
	h := &guardedHost{
		Interface: nfttest.NewFake(), Fake: sysctltest.NewFake(map[string]string{localnet.Name: setting}),
		t: t, own: setting != "0",
	}
	h.restart()
	return h
}

// restart replaces the dataplane by a new one, which knows nothing.
func (h *guardedHost) restart() {
	h.d = Alone.New(h, mode.Settings{MasqueradeBit: 14})
	h.d.localnet = localnet.New(h, func(context.Context) (localnet.Traces, error) { return h.others, nil })
}

func (h *guardedHost) Commit(ctx context.Context, b *nft.Batch) error {
	if h.most > 0 && len(b.Ops) > h.most {
		return unix.EMSGSIZE
	}
	err := h.Interface.Commit(ctx, b)
	h.check("a batch")
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
		h.t.Errorf("after %s route_localnet is on without a guard that has the note", after)
	}
}

func (h *guardedHost) guarded(g localnet.Guard) bool {
	h.t.Helper()
	t := newTable(proxy.IPv4, 14, Alone)
	l, err := h.List(h.t.Context(), t.Table)
	if err != nil {
		h.t.Fatal(err)
	}
	return l != nil && t.hasGuard(l, g)
}

// node returns a node with or without NodePorts on loopback addresses.
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
		s := plainState(30)
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

func (h *guardedHost) leave() error {
	defer h.restart()
	return h.d.Leave(h.t.Context())
}

func (h *guardedHost) killed() error {
	h.restart()
	return nil
}

func (h *guardedHost) cleanup() error {
	defer h.restart()
	_, err := cleanup(h.t.Context(), h, h, Alone, Keep{})
	return err
}

// makeUnrepairable changes the table so that it cannot be repaired, and limits batches so
// that it cannot be replaced in one.
func (h *guardedHost) makeUnrepairable() error {
	t := newTable(proxy.IPv4, 14, Alone)
	var b nft.Batch
	b.DeleteTable(t.Table)
	t.addGuard(&b, localnet.Guard{InForce: true, Noted: true})
	b.AddChain(t.Table, &nft.Chain{Name: "nat-output", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: 7}})
	if err := h.Interface.Commit(h.t.Context(), &b); err != nil {
		return err
	}
	h.restart()
	h.d.syncBytes, h.most = 1, 200
	return nil
}

// TestLoopbackTransitions goes from every state to every other one.
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
		fails   bool // the last step
	}{
		{name: "cleanup", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.cleanup} }},
		{name: "cleanup after a restart", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(true), h.cleanup} }},
		{name: "cleanup after leaving", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.leave, h.cleanup} }},
		{name: "excluded at a restart", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(false)} }},
		{name: "excluded live", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "included again live", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false), h.apply(true)} }},
		{name: "the administrator's", setting: "1", want: "1", guard: plain, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.leave, h.sync(true)} }},
		{name: "the administrator's, cleanup", setting: "1", want: "1", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(true), h.cleanup} }},
		{name: "the administrator's, excluded live", setting: "1", want: "1", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "kube-proxy's", setting: "1", others: localnet.Traces{Proxied: true}, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true)} }},
		{name: "kube-proxy's, not wanted", setting: "1", others: localnet.Traces{Proxied: true}, want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(false)} }},
		{name: "the iptables mode's", setting: "1", others: localnet.Traces{Guarded: true, Noted: true}, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true)} }},
		{name: "read-only, excluded live", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.apply(false)} }},
		{name: "read-only, excluded at a restart", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.sync(false)} }},
		{name: "read-only, cleanup", setting: "0", refuse: true, want: "1", guard: noted, fails: true, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.cleanup} }},
		{name: "read-only, a daemon after the cleanup", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps {
			return steps{h.sync(true), func() error { _ = h.cleanup(); return nil }, h.sync(true)}
		}},
		{name: "prepared", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.prepare(true)} }},
		{name: "prepared, a daemon that may not write", setting: "0", refuse: true, want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.prepare(true), h.sync(true)} }},
		{name: "prepared, cleanup", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.prepare(true), h.cleanup} }},
		{name: "prepared where it was excluded", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(false), h.killed, h.prepare(true)} }},
		{name: "prepared to be excluded", setting: "0", want: "0", steps: func(h *guardedHost) steps { return steps{h.sync(true), h.killed, h.prepare(false), h.sync(false)} }},
		{name: "a table that cannot be mended", setting: "0", want: "1", guard: noted, steps: func(h *guardedHost) steps { return steps{h.sync(true), h.makeUnrepairable, h.sync(true)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newGuardedHost(t, tt.setting)
			h.others, h.own = tt.others, tt.setting == "1"
			all := tt.steps(h)
			for i, step := range all {
				if i > 0 && tt.refuse {
					h.Refuse(localnet.Name, errors.New("read-only file system"))
				}
				if err := step(); (err != nil) != (tt.fails && i == len(all)-1) {
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

// TestCleanupKeepsTheGuardAlone checks that nothing but the guard stays, and that a second
// clean-up changes nothing and says what to do.
func TestCleanupKeepsTheGuardAlone(t *testing.T) {
	h := newGuardedHost(t, "0")
	if err := h.sync(true)(); err != nil {
		t.Fatal(err)
	}
	h.Refuse(localnet.Name, errors.New("read-only file system"))
	for i, want := range [][]string{{"table ip sluice", "table ip6 sluice"}, nil} {
		removed, err := cleanup(t.Context(), h, h, Alone, Keep{})
		if err == nil || !slices.Equal(removed, want) {
			t.Errorf("cleanup %d: removed %q, error %v", i, removed, err)
		}
		l, err := h.List(t.Context(), newTable(proxy.IPv4, 0, Alone).Table)
		if err != nil || l == nil || !onlyGuard(l) {
			t.Errorf("cleanup %d left %+v, error %v", i, l, err)
		}
	}
	h.others.Guarded = true
	if removed, err := cleanup(t.Context(), h, h, Alone, Keep{Loopback: true}); err != nil || len(removed) != 1 || !localnet.IsOn(h) {
		t.Errorf("for a caller with its own guard: removed %q, error %v", removed, err)
	}
}
