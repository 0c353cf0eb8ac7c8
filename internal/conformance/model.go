package conformance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
	"sluice/internal/resolve"
)

// Model describes a dataplane whose kernel is simulated in memory: no packets can be sent, but the
// model can evaluate them.
type Model struct {
	Mode string

	// Open returns a dataplane with an empty kernel.
	Open func() ModelRun
}

// ModelRun is a dataplane together with its simulated kernel.
type ModelRun interface {
	proxy.Dataplane

	// Judge returns an error if the kernel does not do with the packet what the table expects.
	Judge(s *proxy.State, p proxy.Packet, want Expect) error

	// Objects returns a sorted description of all objects in the kernel.
	Objects() []string
}

// RunModel evaluates the whole table. Every group is a subtest.
func RunModel(t *testing.T, m Model) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		t.Run(g.ID, func(t *testing.T) { m.runGroup(t, g) })
	}
}

// RunRandomModel evaluates the same random groups as RunRandom, a fifth of them if tests should be
// short.
func RunRandomModel(t *testing.T, m Model, seed uint64, n int) {
	if testing.Short() {
		n /= 5
	}
	for i := range uint64(n) {
		g, err := randomGroup(m.Mode, seed+i)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(g.ID, func(t *testing.T) {
			if m.runGroup(t, g); t.Failed() {
				t.Log(g.describeStates(m.Mode))
			}
		})
	}
}

// RunPolicyModel evaluates rows with every combination of properties that policy depends on, on nodes
// with every combination of such settings, for every kind of frontend and client.
func RunPolicyModel(t *testing.T, m Model) {
	for _, f := range proxy.Families {
		for i, node := range proxytest.PolicyNodes() {
			run, state := m.Open(), proxy.NewState()
			state.Node = node
			if err := proxytest.Sync(t.Context(), run, state); err != nil {
				t.Fatal(err)
			}
			var old []*proxy.ServicePort
			for _, sp := range proxytest.PolicyRows(f) {
				step := &proxy.Delta{Removes: old, Upserts: []proxy.Upsert{{New: sp}}}
				if err := ignoreRefusals(proxytest.Apply(t.Context(), run, step)); err != nil {
					t.Fatal(err)
				}
				old, state.Rows = []*proxy.ServicePort{sp}, map[proxy.PortKey]*proxy.ServicePort{sp.Key: sp}
				for _, p := range policyPackets(f, node, sp) {
					if err := run.Judge(state, p, answer(state, p)); err != nil {
						t.Errorf("%v, node %d: %v\n\trow    %v\n\tpacket %+v\n\twant   %v", f, i, err, sp, p, answer(state, p))
					}
				}
			}
		}
	}
}

// policyPackets returns packets to every frontend of a row from every kind of client, including one
// that source ranges do not contain.
func policyPackets(f proxy.Family, n *proxy.Node, sp *proxy.ServicePort) (out []proxy.Packet) {
	link := cmp.Or(n.LocalPods.Interface, lab.Bridge)
	if n.LocalPods.IsPrefix {
		link += "0"
	}
	for _, front := range sp.Frontends {
		p := proxy.Packet{Protocol: sp.Key.Protocol, Dst: front.Addr}
		if front.Kind == proxy.NodePort {
			p.Dst, p.DstLocal = netip.AddrPortFrom(netip.MustParseAddr(clients[FromNode].addrs[f]), front.Addr.Port()), true
		}
		for _, from := range []Place{FromPod, FromNode, FromOutside, FromBlocked, FromRemotePod} {
			c := p
			c.Src, c.SrcLocal, c.In = netip.MustParseAddr(clients[from].addrs[f]), from == FromNode, clients[from].link
			if from == FromPod {
				c.In = link
			}
			out = append(out, c)
		}
	}
	return out
}

// runGroup leads a kernel through a group by increments. After each phase it must be correct and have
// the same objects as a kernel that received the whole state at once; so must be one whose resolver
// received everything at once, which may have put endpoints in other slots.
func (m Model) runGroup(t *testing.T, g *Group) {
	rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(g.ID))))
	worlds := g.worlds()
	steps, resolver := m.Open(), worlds[0].emptyResolver(m.Mode)
	err := syncModel(t.Context(), steps, resolver)
	events := worlds[0].begin(rng)
	for i, w := range worlds {
		if i > 0 {
			events = shuffle(worlds[i-1].changes(w, rng), rng)
		}
		for _, e := range events {
			e(resolver)
			if d := resolver.Update(); !d.Empty() {
				err = errors.Join(err, ignoreRefusals(proxytest.Apply(t.Context(), steps, d)))
			}
		}
		whole, fresh := m.Open(), m.Open()
		if err := errors.Join(err, syncModel(t.Context(), whole, resolver), syncModel(t.Context(), fresh, w.newResolver(m.Mode))); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(whole.Objects(), steps.Objects(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("phase %s: increments lead to other objects than a whole state (-whole +increments):\n%s", g.Phases[i].Name, diff)
		}
		for _, c := range g.casesFor(m.Mode, g.Phases[i].Name) {
			for _, run := range []ModelRun{fresh, steps} {
				if err := run.Judge(resolver.State(), packet(c), c.expected(m.Mode)); err != nil {
					t.Errorf("case %s: %v\n\twant:   %v", c.ID, err, c.expected(m.Mode))
				}
			}
		}
	}
}

func syncModel(ctx context.Context, d proxy.Dataplane, r *resolve.Resolver) error {
	return ignoreRefusals(proxytest.Sync(ctx, d, r.State()))
}

// ignoreRefusals drops an error about refused rows: their packets are judged one by one.
func ignoreRefusals(err error) error {
	if _, ok := errors.AsType[*proxytest.RefusedError](err); ok {
		return nil
	}
	return err
}
