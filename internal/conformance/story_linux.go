package conformance

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// backends are the endpoints that answered a client, in order.
type backends map[netip.Addr][]netip.AddrPort

func (b *testbed) runStory(ctx context.Context, story *Story) (failures []failure) {
	b.lastGroup = story.ID
	for _, err := range b.runBothWays(story.ID, &story.World, func(r *run) error { return r.runSteps(ctx, story.Steps) }) {
		if err != nil {
			failures = append(failures, failure{err: err})
		}
	}
	return failures
}

func (r *run) runSteps(ctx context.Context, steps []*Step) error {
	worlds := []*World{r.world}
	var cases []*Case
	for _, st := range steps {
		if st.Do == "change" {
			worlds = append(worlds, worlds[len(worlds)-1].after(st.Change))
		}
		cases = append(cases, st.cases()...)
	}
	if err := r.prepare(worlds, cases); err != nil {
		return err
	}
	// Sync the empty state, so that the kernel forgets the clients of earlier runs.
	if err := r.sync(ctx, r.resolver.State()); err != nil {
		return err
	}
	if err := r.applyInitial(ctx); err != nil {
		return err
	}
	for i, st := range steps {
		if err := r.runStep(ctx, st); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, st.Do, err)
		}
	}
	return nil
}

func (r *run) runStep(ctx context.Context, st *Step) error {
	switch st.Do {
	case "connect":
		return r.connect(ctx, st)
	case "wait":
		return sleep(ctx, st.Seconds)
	case "resync":
		return r.sync(ctx, r.resolver.State())
	case "change":
		return r.change(ctx, st.Change)
	case "remove_endpoint":
		return r.removeEndpoint(ctx, st.Which)
	case "reopen":
		// A new process has a new resolver, which may assign other slots to endpoints.
		r.resolver = r.world.newResolver(r.d.Mode)
		return r.reopen(ctx, r.resolver.State())
	default:
		panic("unknown step " + st.Do)
	}
}

// sleep waits in real time: session affinity expires by the kernel's clock.
func sleep(ctx context.Context, seconds float64) error {
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *run) change(ctx context.Context, p Phase) error {
	next := r.world.after(p)
	var events []event
	for _, t := range r.world.changes(next, r.rng) {
		// No detours: a binding must survive the change itself, but not the temporary absence of
		// its endpoint.
		events = append(events, t[len(t)-1])
	}
	r.world = next
	return r.applyEvents(ctx, events)
}

// removeEndpoint removes the remembered backends from every slice.
func (r *run) removeEndpoint(ctx context.Context, name string) error {
	gone := map[string]bool{}
	for _, list := range r.remembered[name] {
		gone[list[0].Addr().String()] = true
	}
	var p Phase
	for _, s := range r.world.Slices {
		s = s.DeepCopy()
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return gone[e.Addresses[0]] })
		p.Slices = append(p.Slices, s)
	}
	return r.change(ctx, p)
}

func (r *run) connect(ctx context.Context, st *Step) error {
	var runs []*caseRun
	for _, c := range st.cases() {
		runs = append(runs, &caseRun{Case: c, want: oracleAnswer(r.resolver.State(), c), unbound: r.choosesSource(c)})
	}
	got := backends{}
	for i := range max(1, st.Times) {
		if i > 0 {
			if err := sleep(ctx, st.Every); err != nil {
				return err
			}
		}
		if err := r.connectAll(ctx, runs); err != nil {
			return err
		}
		for _, c := range runs {
			if c.err != nil {
				return fmt.Errorf("connection %d: %w", i+1, c.err)
			}
			got[c.Src] = c.answers
		}
	}
	for _, a := range st.Assert {
		word, name, _ := strings.Cut(a, " ")
		if err := checkAssertion(word, got, r.remembered[name], runs[0].want); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	if st.Remember != "" {
		r.remembered[st.Remember] = got
	}
	return nil
}

func checkAssertion(word string, got, before backends, want Expect) error {
	share := map[netip.AddrPort]int{}
	total, moved := 0, false
	for src, list := range got {
		for _, b := range list {
			share[b]++
			total++
		}
		same := len(before[src]) > 0 && !slices.ContainsFunc(list, func(b netip.AddrPort) bool { return b != before[src][0] })
		moved = moved || !same
		switch {
		case word == "one_backend" && len(slices.Compact(slices.Clone(list))) != 1:
			return fmt.Errorf("client %v got %v", src, list)
		case word == "same_as" && !same:
			return fmt.Errorf("client %v had %v and got %v", src, before[src], list)
		case word == "never_as" && slices.Contains(list, before[src][0]):
			return fmt.Errorf("client %v still got %v", src, before[src][0])
		}
	}
	switch {
	case word == "moved_from" && !moved:
		return fmt.Errorf("all %d clients got the same as before", len(got))
	case word == "all_backends" && len(share) != len(want.To):
		return fmt.Errorf("only %v were seen", share)
	case word == "even":
		return checkEven(share, total)
	}
	return nil
}

// checkEven checks that the shares differ by no more than chance allows: a deviation of five
// standard deviations happens less than once in a million runs.
func checkEven(share map[netip.AddrPort]int, total int) error {
	p := 1 / float64(len(share))
	tolerance := 5 * math.Sqrt(float64(total)*p*(1-p))
	for b, n := range share {
		if math.Abs(float64(n)-p*float64(total)) > tolerance {
			return fmt.Errorf("%v got %d of %d connections: %v", b, n, total, share)
		}
	}
	return nil
}
