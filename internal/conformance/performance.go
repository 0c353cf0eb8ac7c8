package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sluice/internal/proxy"
)

// perform plays a group in both ways.
func (s *stage) perform(ctx context.Context, g *Group) []Failure {
	how := "play in a new lab"
	if s.last != "" {
		how = "play after " + s.last // whose state the kernel still has
	}
	s.last = g.ID
	broken := func(err error) []Failure {
		return []Failure{{Group: g.ID, How: how, Got: err.Error()}}
	}
	worlds, err := g.worlds()
	if err != nil {
		return broken(err)
	}
	stop, err := s.set(g, worlds)
	if err != nil {
		return broken(err)
	}
	p := &performance{stage: s, group: g, worlds: worlds}
	err = errors.Join(p.atOnce(ctx), p.byIncrements(ctx), stop())
	if err != nil {
		p.failures = append(p.failures, broken(err)...)
	}
	return p.failures
}

// set prepares the lab for a group.
func (s *stage) set(g *Group, worlds []*World) (stop func() error, err error) {
	c := newCast()
	for _, w := range worlds {
		if err := c.addWorld(w); err != nil {
			return nil, err
		}
	}
	for _, k := range g.Cases {
		if !k.plays(s.d.Mode) {
			continue
		}
		if err := c.addCase(k); err != nil {
			return nil, fmt.Errorf("case %s: %w", k.ID, err)
		}
	}
	if err := s.settle(c.pods); err != nil {
		return nil, err
	}
	return s.listen(c.listeners)
}

// performance is one group on one stage.
type performance struct {
	*stage
	group    *Group
	worlds   []*World // of each phase
	failures []Failure
}

// atOnce gives the kernel each phase's state as a whole.
func (p *performance) atOnce(ctx context.Context) error {
	for i, phase := range p.group.Phases {
		r, err := p.worlds[i].resolver(p.d.Mode)
		if err != nil {
			return err
		}
		if err := p.sync(ctx, r.State()); err != nil {
			return err
		}
		if err := p.phase(ctx, phase, scene{"kernel, state at once", r.State()}); err != nil {
			return err
		}
	}
	return nil
}

// byIncrements leads the kernel to each phase's state in small steps.
func (p *performance) byIncrements(ctx context.Context) error {
	r, err := p.worlds[0].bare(p.d.Mode)
	if err != nil {
		return err
	}
	if err := p.sync(ctx, r.State()); err != nil {
		return err
	}
	rng := seeded(p.group.ID)
	events := p.worlds[0].begin(rng)
	for i, phase := range p.group.Phases {
		if i > 0 {
			events = p.worlds[i-1].step(p.worlds[i], rng)
		}
		for _, e := range events {
			e(r)
			if err := p.apply(ctx, r.Update()); err != nil {
				return err
			}
		}
		if err := p.phase(ctx, phase, scene{"kernel, state by increments", r.State()}); err != nil {
			return err
		}
	}
	return nil
}

// scene is a state that the kernel is in, and how it came there.
type scene struct {
	how   string
	state *proxy.State
}

// phase plays the cases of a phase.
func (p *performance) phase(ctx context.Context, phase Phase, sc scene) error {
	cases := p.possible(p.group.in(phase, p.d.Mode))
	wrong, err := p.play(ctx, cases)
	if err != nil {
		return err
	}
	for _, c := range slices.DeleteFunc(cases, func(c *Case) bool { return wrong[c] == nil }) {
		p.failures = append(p.failures, Failure{
			Group: p.group.ID, Case: c.ID, How: sc.how, Want: c.in(p.d.Mode).String(),
			Got: wrong[c].Error(), Oracle: answer(sc.state, c).String(),
		})
	}
	return nil
}

// possible returns the cases that the kernel can play, and makes the others
// skips.
func (p *performance) possible(cases []*Case) []*Case {
	return slices.DeleteFunc(cases, func(c *Case) bool {
		err := p.lab.Supports(c.Proto.protocol())
		if err != nil {
			p.failures = append(p.failures, Failure{Group: p.group.ID, Case: c.ID, Got: err.Error(), Skip: true})
		}
		return err != nil
	})
}
