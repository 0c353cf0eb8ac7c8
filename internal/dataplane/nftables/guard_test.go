package nftables

import (
	"context"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/localnet/localnettest"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
)

// guarded is nf_tables of a host.
type guarded struct {
	nft.Interface
	host *localnettest.Host
	most int // operations in a batch; 0: any number
	d    *Dataplane
}

func guard(h *localnettest.Host, setting string) {
	h.Settings = sysctltest.NewFake(map[string]string{localnet.Name: setting})
	h.Mode = &guarded{Interface: nfttest.NewFake(), host: h}
}

func (g *guarded) Open() proxy.Dataplane {
	g.d = Alone.New(g, mode.Settings{MasqueradeBit: 14})
	g.d.localnet = localnet.New(g.host, g.host.Traces)
	return g.d
}

func (g *guarded) Commit(ctx context.Context, b *nft.Batch) error {
	if g.most > 0 && len(b.Ops) > g.most {
		return unix.EMSGSIZE
	}
	err := g.Interface.Commit(ctx, b)
	g.host.Check("a batch")
	return err
}

func (g *guarded) Guarded(want localnet.Guard) bool {
	t := newTable(proxy.IPv4, 14, Alone)
	l, err := g.List(g.host.Context(), t.Table)
	if err != nil {
		g.host.Fatal(err)
	}
	return l != nil && t.hasGuard(l, want)
}

func (g *guarded) Prepare(ctx context.Context, opens bool) error {
	return g.d.prepare(ctx, opens)
}

func (g *guarded) State(at localnettest.NodePorts) *proxy.State {
	s := plainState(30)
	s.Node.LocalhostNodePorts, s.Node.NodePorts = at.Localhost, at.In
	return s
}

func left(h *localnettest.Host) error {
	if err := h.Mode.(*guarded).d.Leave(h.Context()); err != nil {
		return err
	}
	return localnettest.Killed(h)
}

func cleanedUp(h *localnettest.Host) error {
	if _, err := cleanup(h.Context(), h.Mode.(*guarded), h, Alone, Keep{}); err != nil {
		return err
	}
	return localnettest.Killed(h)
}

// unrepairable changes the table so that it cannot be repaired, and limits batches so that it
// cannot be replaced in one.
func unrepairable(h *localnettest.Host) error {
	t, g := newTable(proxy.IPv4, 14, Alone), h.Mode.(*guarded)
	var b nft.Batch
	b.DeleteTable(t.Table)
	t.addGuard(&b, localnettest.Noted)
	b.AddChain(t.Table, &nft.Chain{Name: "nat-output", Hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: 7}})
	if err := g.Interface.Commit(h.Context(), &b); err != nil {
		return err
	}
	err := localnettest.Killed(h)
	g.d.syncBytes, g.most = 1, 200
	return err
}

// TestLoopbackTransitions goes from every state to every other one.
func TestLoopbackTransitions(t *testing.T) {
	type steps = []localnettest.Step
	opened, readOnly := localnettest.Opened.Sync, localnettest.Step(localnettest.ReadOnly)
	localnettest.Run(
		t, guard,
		localnettest.History{Name: "cleanup", Setting: "0", Want: "0", Steps: steps{opened, cleanedUp}},
		localnettest.History{Name: "cleanup after a restart", Setting: "0", Want: "0", Steps: steps{opened, localnettest.Killed, opened, cleanedUp}},
		localnettest.History{Name: "cleanup after leaving", Setting: "0", Want: "0", Steps: steps{opened, left, cleanedUp}},
		localnettest.History{Name: "the administrator's, after leaving", Setting: "1", Want: "1", Guard: localnettest.Plain, Steps: steps{opened, left, opened}},
		localnettest.History{Name: "the administrator's, cleanup", Setting: "1", Want: "1", Steps: steps{opened, localnettest.Killed, opened, cleanedUp}},
		localnettest.History{Name: "read-only, cleanup", Setting: "0", Want: "1", Guard: localnettest.Noted, Steps: steps{opened, readOnly, localnettest.Fails(cleanedUp)}},
		localnettest.History{
			Name: "read-only, a daemon after the cleanup", Setting: "0", Want: "1", Guard: localnettest.Noted,
			Steps: steps{opened, readOnly, localnettest.Fails(cleanedUp), localnettest.Killed, opened},
		},
		localnettest.History{Name: "prepared, cleanup", Setting: "0", Want: "0", Steps: steps{localnettest.Prepare(true), cleanedUp}},
		localnettest.History{Name: "a table that cannot be mended", Setting: "0", Want: "1", Guard: localnettest.Noted, Steps: steps{opened, unrepairable, opened}},
	)
}

// TestCleanupKeepsTheGuardAlone checks that nothing but the guard stays, and that a second
// clean-up changes nothing and says what to do.
func TestCleanupKeepsTheGuardAlone(t *testing.T) {
	h := &localnettest.Host{T: t}
	guard(h, "0")
	g := h.Mode.(*guarded)
	for _, step := range []localnettest.Step{localnettest.Killed, localnettest.Opened.Sync, localnettest.ReadOnly} {
		if err := step(h); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{"table ip sluice", "table ip6 sluice"}, nil} {
		removed, err := cleanup(t.Context(), g, h, Alone, Keep{})
		if err == nil || !slices.Equal(removed, want) {
			t.Errorf("cleanup %d: removed %q, error %v", i, removed, err)
		}
		l, err := g.List(t.Context(), newTable(proxy.IPv4, 0, Alone).Table)
		if err != nil || l == nil || !onlyGuard(l) {
			t.Errorf("cleanup %d left %+v, error %v", i, l, err)
		}
	}
	h.Others.Guarded = true
	if removed, err := cleanup(t.Context(), g, h, Alone, Keep{Loopback: true}); err != nil || len(removed) != 1 || !localnet.IsOn(h) {
		t.Errorf("for a caller with its own guard: removed %q, error %v", removed, err)
	}
}
