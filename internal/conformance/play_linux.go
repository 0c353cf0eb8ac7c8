package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

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

func (b *testbed) newRun(id string, w *World, increments bool) *run {
	return &run{b, increments, seeded(id), w, w.nothing(b.d.Mode), map[string]backends{}}
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

// runGroup plays a group in both ways.
func (b *testbed) runGroup(ctx context.Context, g *Group) (failures []Failure) {
	how := "play in a new lab"
	if b.last != "" {
		how = "play after " + b.last // whose state the kernel still has
	}
	b.last = g.ID
	var cases []*Case
	for _, c := range g.Cases {
		if c.plays(b.d.Mode) {
			cases = append(cases, c)
		}
	}
	worlds := g.worlds()
	stop, err := b.prepare(worlds, cases)
	if err == nil {
		for _, increments := range []bool{false, true} {
			found, failed := b.newRun(g.ID, worlds[0], increments).phases(ctx, g, worlds)
			failures, err = append(failures, found...), errors.Join(err, failed)
		}
		err = errors.Join(err, stop())
	}
	if err != nil {
		failures = append(failures, Failure{Group: g.ID, How: how, Got: err.Error()})
	}
	return failures
}

// phases plays the phases of a group, one after the other.
func (r *run) phases(ctx context.Context, g *Group, worlds []*World) (failures []Failure, err error) {
	how := "kernel, state at once"
	if r.increments {
		how = "kernel, state by increments"
	}
	for i, p := range g.Phases {
		if i == 0 {
			err = r.begin(ctx)
		} else {
			err = r.follow(ctx, shuffle(worlds[i-1].changes(worlds[i], r.rng), r.rng))
		}
		if err != nil {
			return failures, err
		}
		// What the kernel cannot play is skipped.
		cases := slices.DeleteFunc(g.in(p, r.d.Mode), func(c *Case) bool {
			err := r.lab.Supports(c.protocol())
			if err != nil {
				failures = append(failures, Failure{Group: g.ID, Case: c.ID, Got: err.Error(), Skip: true})
			}
			return err != nil
		})
		wrong, err := r.play(ctx, cases)
		if err != nil {
			return failures, err
		}
		for _, c := range cases {
			if wrong[c] != nil {
				failures = append(failures, Failure{
					Group: g.ID, Case: c.ID, How: how, Want: c.in(r.d.Mode).String(),
					Got: wrong[c].Error(), Oracle: answer(r.resolver.State(), c).String(),
				})
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
	want  Expect
	tries int
	seen  map[netip.AddrPort]bool
	err   error // the first surprise
}

// next returns how many connections are still to be made.
func (r *caseRun) next() int {
	switch {
	case r.err != nil:
		return 0
	case r.want.Verdict != proxy.Forward:
		return otherTries - r.tries
	case r.tries == 0 || len(r.want.missing(r.seen)) > 0 && r.tries < manyTries*len(r.want.To):
		return fewTries * len(r.want.To)
	default:
		return 0
	}
}

// result returns what was wrong, or nil.
func (r *caseRun) result() error {
	if missing := r.want.missing(r.seen); r.err == nil && len(missing) > 0 {
		return fmt.Errorf("%v never answered in %d connections", missing, r.tries)
	}
	return r.err
}

// play sends the packets of cases and returns what was wrong with each. Those
// that need an address bound to the node come one by one after the others, as
// an address that is the node's changes what the others would see.
func (b *testbed) play(ctx context.Context, cases []*Case) (map[*Case]error, error) {
	var together, alone []*caseRun
	for _, c := range cases {
		r := &caseRun{Case: c, want: c.in(b.d.Mode), seen: map[netip.AddrPort]bool{}}
		if c.From == FromVIP {
			alone = append(alone, r)
		} else {
			together = append(together, r)
		}
	}
	if err := b.playTogether(ctx, together); err != nil {
		return nil, err
	}
	for _, r := range alone {
		if err := b.playBound(ctx, r); err != nil {
			return nil, err
		}
	}
	wrong := map[*Case]error{}
	for _, r := range append(together, alone...) {
		wrong[r.Case] = r.result()
	}
	return wrong, nil
}

// playBound plays one case while its source is an address of the node.
func (b *testbed) playBound(ctx context.Context, r *caseRun) error {
	n := b.lab.Node()
	if err := n.Bind(r.Src); err != nil {
		return err
	}
	closed := func() error { return nil }
	if r.Dst == r.Src {
		l, err := n.Listen(r.protocol(), r.to())
		if err != nil {
			return errors.Join(err, n.Unbind(r.Src))
		}
		closed = l.Close
	}
	return errors.Join(b.playTogether(ctx, []*caseRun{r}), closed(), n.Unbind(r.Src))
}

// playTogether makes connections until each case is decided.
func (b *testbed) playTogether(ctx context.Context, all []*caseRun) error {
	for {
		byHost := map[*lab.Host][]*caseRun{}
		for _, r := range all {
			for range r.next() {
				h := b.client(r.Case)
				byHost[h] = append(byHost[h], r)
			}
		}
		if len(byHost) == 0 {
			return nil
		}
		if err := b.round(ctx, byHost); err != nil {
			return err
		}
	}
}

// round makes one connection for each case in the lists, on all hosts at once.
func (b *testbed) round(ctx context.Context, byHost map[*lab.Host][]*caseRun) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for h, list := range byHost {
		var flows []traffic.Flow
		for _, r := range list {
			patience := untilFailure
			if r.want.Verdict == proxy.Drop {
				patience = b.silence
			}
			flows = append(flows, flow(r.Case, patience))
		}
		wg.Go(func() {
			seen, err := h.Probe(ctx, flows)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			for i := range seen {
				b.note(list[i], seen[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// note takes one observation of a case.
func (b *testbed) note(r *caseRun, seen traffic.Seen) {
	r.tries++
	if err := b.check(r.Case, r.want, seen); err != nil {
		if r.err == nil {
			r.err = err
		}
		return
	}
	if seen.Fate == traffic.Answered {
		r.seen[seen.By] = true
	}
}
