package conformance

import (
	"context"
	"errors"
	"slices"

	"sluice/internal/proxy"
)

// groupRun is one group while it is played.
type groupRun struct {
	*testbed
	group    *Group
	worlds   []*World // of each phase
	failures []Failure
}

// runGroup plays a group in both ways.
func (b *testbed) runGroup(ctx context.Context, g *Group) []Failure {
	how := "play in a new lab"
	if b.last != "" {
		how = "play after " + b.last // whose state the kernel still has
	}
	b.last = g.ID
	r := &groupRun{testbed: b, group: g, worlds: g.worlds()}
	var cases []*Case
	for _, c := range g.Cases {
		if c.plays(b.d.Mode) {
			cases = append(cases, c)
		}
	}
	stop, err := b.prepare(r.worlds, cases)
	if err == nil {
		err = errors.Join(r.atOnce(ctx), r.byIncrements(ctx), stop())
	}
	if err != nil {
		r.failures = append(r.failures, Failure{Group: g.ID, How: how, Got: err.Error()})
	}
	return r.failures
}

// atOnce gives the kernel each phase's state as a whole.
func (r *groupRun) atOnce(ctx context.Context) error {
	for i, p := range r.group.Phases {
		state := r.worlds[i].resolver(r.d.Mode).State()
		if err := r.sync(ctx, state); err != nil {
			return err
		}
		if err := r.phase(ctx, p, "kernel, state at once", state); err != nil {
			return err
		}
	}
	return nil
}

// byIncrements leads the kernel to each phase's state in small steps.
func (r *groupRun) byIncrements(ctx context.Context) error {
	res := r.worlds[0].nothing(r.d.Mode)
	if err := r.sync(ctx, res.State()); err != nil {
		return err
	}
	rng := seeded(r.group.ID)
	events := r.worlds[0].begin(rng)
	for i, p := range r.group.Phases {
		if i > 0 {
			events = shuffle(r.worlds[i-1].changes(r.worlds[i], rng), rng)
		}
		for _, e := range events {
			e(res)
			if err := r.apply(ctx, res.Update()); err != nil {
				return err
			}
		}
		if err := r.phase(ctx, p, "kernel, state by increments", res.State()); err != nil {
			return err
		}
	}
	return nil
}

// phase plays the cases of a phase while the kernel is in a state.
func (r *groupRun) phase(ctx context.Context, p Phase, how string, state *proxy.State) error {
	// What the kernel cannot play is skipped.
	cases := slices.DeleteFunc(r.group.in(p, r.d.Mode), func(c *Case) bool {
		err := r.lab.Supports(c.protocol())
		if err != nil {
			r.failures = append(r.failures, Failure{Group: r.group.ID, Case: c.ID, Got: err.Error(), Skip: true})
		}
		return err != nil
	})
	wrong, err := r.play(ctx, cases)
	if err != nil {
		return err
	}
	for _, c := range cases {
		if wrong[c] != nil {
			r.failures = append(r.failures, Failure{
				Group: r.group.ID, Case: c.ID, How: how, Want: c.in(r.d.Mode).String(),
				Got: wrong[c].Error(), Oracle: answer(state, c).String(),
			})
		}
	}
	return nil
}
