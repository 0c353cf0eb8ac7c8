package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// run is a group or a story while it is played in one of two ways: its changes
// reach the kernel as whole states, or as increments.
type run struct {
	*testbed
	increments bool
	rng        *rand.Rand
	world      *World
	resolver   *resolve.Resolver
	remembered map[string]backends // by a story's steps
}

// begin makes the kernel forget what it was left with and leads it to the world.
// A whole state must do without that.
func (r *run) begin(ctx context.Context) error {
	if r.increments {
		if err := r.sync(ctx, r.resolver.State()); err != nil {
			return err
		}
	}
	return r.follow(ctx, r.world.begin(r.rng))
}

// follow tells the resolver events and the kernel what came of them.
func (r *run) follow(ctx context.Context, events []event) error {
	for _, e := range events {
		e(r.resolver)
		if r.increments {
			if err := r.apply(ctx, r.resolver.Update()); err != nil {
				return err
			}
		}
	}
	if r.increments {
		return nil
	}
	r.resolver.Update()
	return r.sync(ctx, r.resolver.State())
}

// inBothWays plays something with whole states and by increments.
func (b *testbed) inBothWays(id string, w *World, play func(*run) error) (errs []error) {
	for _, increments := range []bool{false, true} {
		r := &run{b, increments, seeded(id), w, w.nothing(b.d.Mode), map[string]backends{}}
		errs = append(errs, within(r.String(), play(r)))
	}
	return errs
}

// String says which of the two ways it is.
func (r *run) String() string {
	if r.increments {
		return "kernel, state by increments"
	}
	return "kernel, state at once"
}

// runGroup plays a group in both ways.
func (b *testbed) runGroup(ctx context.Context, g *Group) (failures []failure) {
	how := "play in a new lab"
	if b.last != "" {
		how = "play after " + b.last // whose state the kernel still has
	}
	b.last = g.ID
	worlds := g.worlds()
	stop, err := b.prepare(worlds, g.playing(b.d.Mode))
	if err == nil {
		errs := b.inBothWays(g.ID, worlds[0], func(r *run) error {
			found, err := r.phases(ctx, g, worlds)
			failures = append(failures, found...)
			return err
		})
		err = errors.Join(append(errs, stop())...)
	}
	if err != nil {
		failures = append(failures, failure{err: fmt.Errorf("%s: %w", how, err)})
	}
	return failures
}

// phases plays the phases of a group, one after the other.
func (r *run) phases(ctx context.Context, g *Group, worlds []*World) (failures []failure, err error) {
	for i, p := range g.Phases {
		if i == 0 {
			err = r.begin(ctx)
		} else {
			err = r.follow(ctx, shuffle(worlds[i-1].changes(worlds[i], r.rng), r.rng))
		}
		if err != nil {
			return failures, err
		}
		var runs []*caseRun
		for _, c := range g.playing(r.d.Mode, p.Name) {
			if err := r.lab.Supports(c.protocol()); err != nil {
				failures = append(failures, failure{c.ID, err})
			} else {
				runs = append(runs, &caseRun{Case: c, want: c.in(r.d.Mode)})
			}
		}
		if err := r.play(ctx, runs); err != nil {
			return failures, err
		}
		for _, c := range runs {
			if err := c.result(); err != nil {
				failures = append(failures, failure{c.ID, fmt.Errorf("%v: %w\n\twant:   %v\n\toracle: %v",
					r, err, c.want, answer(r.resolver.State(), c.Case))})
			}
		}
	}
	return failures, nil
}

// How long and how often. An answer takes less than a millisecond here, so where
// silence is expected a wrong answer does not need long to be noticed. Where
// an answer is expected, even a very busy machine must have time to give it.
const (
	untilSilence = 200 * time.Millisecond // when silence is expected
	untilFailure = 4 * time.Second        // when anything else is
	fewTries     = 8                      // per endpoint, if all have answered by then
	manyTries    = 30                     // per endpoint, before one counts as missing
	otherTries   = 2                      // when no endpoint is expected
)

// caseRun is one case while it is played.
type caseRun struct {
	*Case
	want    Expect
	tries   int
	answers []netip.AddrPort // who answered, in order
	err     error            // the first surprise
}

// next returns how many connections are still to be made.
func (r *caseRun) next() int {
	switch {
	case r.err != nil:
		return 0
	case r.want.Verdict != proxy.Forward:
		return otherTries - r.tries
	case r.tries == 0 || len(r.want.missing(r.answers)) > 0 && r.tries < manyTries*len(r.want.To):
		return fewTries * len(r.want.To)
	default:
		return 0
	}
}

// result returns what was wrong, or nil.
func (r *caseRun) result() error {
	if missing := r.want.missing(r.answers); r.err == nil && len(missing) > 0 {
		return fmt.Errorf("%v never answered in %d connections", missing, r.tries)
	}
	return r.err
}

// play sends the packets of cases. Those that need an address bound to the node
// come one by one after the others, as an address that is the node's changes
// what the others would see.
func (b *testbed) play(ctx context.Context, runs []*caseRun) error {
	var together, alone []*caseRun
	for _, r := range runs {
		if r.From == FromVIP {
			alone = append(alone, r)
		} else {
			together = append(together, r)
		}
	}
	err := b.playTogether(ctx, together)
	for _, r := range alone {
		err = errors.Join(err, b.playBound(ctx, r))
	}
	return err
}

// playBound plays one case while its source is an address of the node.
func (b *testbed) playBound(ctx context.Context, r *caseRun) (err error) {
	n := b.lab.Node()
	if err := n.Bind(r.Src); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Unbind(r.Src)) }()
	if r.Dst == r.Src {
		l, failed := n.Listen(r.protocol(), r.to())
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, l.Close()) }()
	}
	return b.playTogether(ctx, []*caseRun{r})
}

// playTogether makes connections until each case is decided.
func (b *testbed) playTogether(ctx context.Context, all []*caseRun) error {
	for {
		var next []*caseRun
		for _, r := range all {
			next = append(next, slices.Repeat([]*caseRun{r}, r.next())...)
		}
		if len(next) == 0 {
			return nil
		}
		if err := b.round(ctx, next); err != nil {
			return err
		}
	}
}

// round makes one connection for each case in the list, on all hosts at once.
func (b *testbed) round(ctx context.Context, list []*caseRun) error {
	byHost := map[*lab.Host][]*caseRun{}
	for _, r := range list {
		h := b.client(r.Case)
		byHost[h] = append(byHost[h], r)
	}
	var group errgroup.Group
	for h, list := range byHost {
		var flows []traffic.Flow
		for _, r := range list {
			patience := untilFailure
			if r.want.Verdict == proxy.Drop {
				patience = b.silence
			}
			flows = append(flows, traffic.Flow{Protocol: r.protocol(), Src: r.Src, Dst: r.to(), Patience: patience})
		}
		group.Go(func() error {
			seen, err := h.Probe(ctx, flows)
			for i := range seen {
				b.note(list[i], seen[i])
			}
			return err
		})
	}
	return group.Wait()
}

// note takes one observation of a case.
func (b *testbed) note(r *caseRun, seen traffic.Seen) {
	r.tries++
	if err := r.want.judge(r.Case, seen, b.visible(r.Src, seen.By)); err != nil {
		r.err = cmp.Or(r.err, err)
	} else if seen.Fate == traffic.Answered {
		r.answers = append(r.answers, seen.By)
	}
}
