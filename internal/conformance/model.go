package conformance

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

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

// RunRandomModel evaluates the same random groups as RunRandom.
func RunRandomModel(t *testing.T, m Model, seed uint64, n int) {
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

// runGroup leads two kernels through a group, one by whole states and one by increments. After each
// phase both must be correct and have the same objects.
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
		whole := m.Open()
		if err := errors.Join(err, syncModel(t.Context(), whole, w.newResolver(m.Mode))); err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprintf("%q", whole.Objects()), fmt.Sprintf("%q", steps.Objects()); a != b {
			t.Errorf("phase %s: increments lead to\n\t%s\na whole state to\n\t%s", g.Phases[i].Name, b, a)
		}
		for _, c := range g.casesFor(m.Mode, g.Phases[i].Name) {
			for _, run := range []ModelRun{whole, steps} {
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
