package conformance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// testbeds is how many labs are used at once. Most of a lab's time is waiting
// for silence, so there are more than processors.
const testbeds = 4

// Run plays the whole table against a dataplane. Every case is a subtest named group/case.
func Run(t *testing.T, d Dataplane) {
	lab.Require(t)
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	s := newScheduler(t, d)
	// What waits longest goes first.
	for _, story := range all.Stateful {
		s.add(t, story.ID, nil, func(ctx context.Context, b *testbed) []failure { return d.checkStory(story.ID, b.runStory(ctx, story)) })
	}
	for _, g := range all.Groups {
		if cases := g.casesFor(d.Mode); len(cases) > 0 {
			s.add(t, g.ID, cases, func(ctx context.Context, b *testbed) []failure {
				return append(g.checkOracle(), b.runGroup(ctx, g)...)
			})
		}
	}
	s.start(t)
}

// RunRandom plays n random worlds, each with changes in it, and compares what
// random packets meet with the oracle's answers. World i is made from seed+i
// alone and is the subtest seed=<that>.
func RunRandom(t *testing.T, d Dataplane, seed uint64, n int) {
	lab.Require(t)
	s := newScheduler(t, d)
	for i := range uint64(n) {
		g, err := randomGroup(d.Mode, seed+i)
		if err != nil {
			t.Fatal(err)
		}
		s.add(t, g.ID, g.Cases, func(ctx context.Context, b *testbed) []failure {
			failures := b.runGroup(ctx, g)
			if len(failures) > 0 {
				failures = append(failures, failure{err: g.describeStates(d.Mode)})
			}
			return failures
		})
	}
	s.start(t)
}

// job is something to be played on a testbed.
type job struct {
	run  func(context.Context, *testbed) []failure
	done chan []failure
}

// scheduler shares the testbeds among the jobs. The testing package runs no
// more subtests at once than there are processors, so the subtests only wait
// and report; the playing is done by goroutines of our own.
type scheduler struct {
	d        Dataplane
	cgroups  *traffic.Cgroups // if the dataplane acts on sockets
	counters counters
	jobs     []job
}

// add makes a job a subtest, which takes part unless it was not asked for.
func (s *scheduler) add(t *testing.T, id string, cases []*Case, play func(context.Context, *testbed) []failure) {
	t.Run(id, func(t *testing.T) {
		j := job{play, make(chan []failure, 1)}
		s.jobs = append(s.jobs, j)
		t.Parallel()
		report(t, cases, <-j.done)
	})
}

// start plays all jobs. The subtests wait for it.
func (s *scheduler) start(t *testing.T) {
	ctx := t.Context()
	queue := make(chan job, len(s.jobs))
	for _, j := range s.jobs {
		queue <- j
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(testbeds, len(s.jobs)) {
		wg.Go(func() {
			b, err := s.newTestbed(ctx)
			for j := range queue {
				if err != nil {
					j.done <- []failure{{err: fmt.Errorf("make lab: %w", err)}}
				} else {
					j.done <- j.run(ctx, b)
				}
			}
			if err == nil {
				if err := b.close(); err != nil {
					t.Errorf("remove lab: %v", err)
				}
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// Dataplane is a dataplane to be put under the table.
type Dataplane struct {
	Mode string // the table's column

	// Binds reports whether the mode makes an address of Services the node's own:
	// its other ports are refused then, which others leave alone. Nil: it does not.
	Binds func(*proxy.State, netip.Addr) bool

	// HandsOver says that its work ends, with an error, when another takes over.
	HandsOver bool

	// Cannot names the stories that the mode cannot play, with the reason.
	Cannot map[string]string

	// Refuses are the protocols that the mode cannot do, and why: it refuses their
	// rows. Cases are played all the same, and fail if an endpoint answers.
	Refuses map[proxy.Protocol]string

	// Open is called inside the node's network namespace, and so is every
	// method of what it returns. Several may be open at once, each in a
	// namespace of its own.
	Open func(context.Context) (proxy.Dataplane, error)

	// Daemon starts a whole daemon on a node, to be played instead of the dataplane.
	Daemon func(node *lab.Host) (Daemon, error)

	// ForgetsClients says that what a daemon knows of clients dies with it.
	ForgetsClients bool

	// Sockets says that the mode acts on sockets, and opens it. Nil: it does not.
	Sockets *Sockets
}

// checkStory wants a story to fail that the mode cannot play.
func (d *Dataplane) checkStory(story string, failures []failure) []failure {
	why, cannot := d.Cannot[story]
	switch {
	case !cannot:
		return failures
	case len(failures) == 0:
		return []failure{{err: fmt.Errorf("went well, though %s", why)}}
	default:
		return nil
	}
}

// report makes failures those of the test and of its cases.
func report(t *testing.T, cases []*Case, failures []failure) {
	t.Helper()
	byCase := map[string][]error{}
	for _, f := range failures {
		byCase[f.id] = append(byCase[f.id], f.err)
	}
	for _, err := range byCase[""] {
		t.Error(err)
	}
	for _, c := range cases {
		t.Run(c.ID, func(t *testing.T) {
			failed, untried := splitUntried(byCase[c.ID])
			for _, err := range failed {
				t.Error(err)
			}
			switch {
			case len(failed) > 0:
				t.Logf("replay in this package: go test -run '%s'", t.Name())
			case untried != nil:
				t.Skip(untried)
			}
		})
	}
}

// splitUntried parts what went wrong in one way of playing a case from why the case could not be
// tried in another.
func splitUntried(errs []error) (failed []error, untried error) {
	for _, err := range errs {
		if errors.Is(err, lab.ErrUntried) {
			untried = cmp.Or(untried, err)
		} else {
			failed = append(failed, err)
		}
	}
	return failed, untried
}

// run is a group or a story while it is played in one of two ways: its changes
// reach the kernel as whole states, or as increments.
type run struct {
	*testbed
	way        string
	increments bool
	rng        *rand.Rand
	world      *World
	resolver   *resolve.Resolver
	remembered map[string]backends        // by a story's steps
	bindings   map[affinityClient]binding // of clients that are remembered
}

// applyInitial makes the kernel forget what it was left with and leads it to the world.
// A whole state must do without that.
func (r *run) applyInitial(ctx context.Context) error {
	if r.increments {
		if err := r.sync(ctx, r.resolver.State()); err != nil {
			return err
		}
	}
	return r.applyEvents(ctx, r.world.begin(r.rng))
}

// applyEvents tells the resolver events and the kernel what came of them.
func (r *run) applyEvents(ctx context.Context, events []event) error {
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

// runBothWays plays something with whole states and by increments. A daemon has ways
// of its own.
func (b *testbed) runBothWays(id string, w *World, play func(*run) error) (errs []error) {
	ways := []string{"kernel, state at once", "kernel, state by increments"}
	if b.daemon != nil {
		ways = []string{"daemon"}
	}
	for i, how := range ways {
		rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(id)))) // the same at each run
		r := &run{b, how, i == 1, rng, w, w.emptyResolver(b.d.Mode), map[string]backends{}, map[affinityClient]binding{}}
		errs = append(errs, wrap(how, play(r)))
	}
	return errs
}

func (b *testbed) runGroup(ctx context.Context, g *Group) (failures []failure) {
	how := "play after " + cmp.Or(b.lastGroup, "nothing") // whose state the kernel still has
	b.lastGroup = g.ID
	worlds := g.worlds()
	err := b.prepare(worlds, g.casesFor(b.d.Mode))
	if err == nil {
		err = errors.Join(b.runBothWays(g.ID, worlds[0], func(r *run) error {
			found, err := r.runPhases(ctx, g, worlds)
			failures = append(failures, found...)
			return err
		})...)
	}
	if err != nil {
		failures = append(failures, failure{err: fmt.Errorf("%s: %w", how, err)})
	}
	return failures
}

func (r *run) runPhases(ctx context.Context, g *Group, worlds []*World) (failures []failure, err error) {
	for i, p := range g.Phases {
		switch {
		case r.daemon != nil:
			err = r.writePhase(ctx, p, worlds[i])
		case i == 0:
			err = r.applyInitial(ctx)
		default:
			err = r.applyEvents(ctx, shuffle(worlds[i-1].changes(worlds[i], r.rng), r.rng))
		}
		// Half of the ports may not be enough for all phases.
		if err := errors.Join(err, r.lab.Refresh()); err != nil {
			return failures, err
		}
		var runs []*caseRun
		for _, c := range g.casesFor(r.d.Mode, p.Name) {
			if err := r.lab.Supports(c.protocol()); err != nil {
				failures = append(failures, failure{c.ID, err})
			} else {
				runs = append(runs, r.caseRun(c))
			}
		}
		runs = append(runs, r.repeatClients(p.Name)...)
		if err := r.runCases(ctx, runs); err != nil {
			return failures, err
		}
		if r.daemon != nil {
			r.recordBindings(runs)
		}
		for _, c := range runs {
			err := c.result()
			if reason := r.d.Refuses[c.protocol()]; reason != "" && c.want.Verdict != proxy.Untouched {
				err = c.checkRefused(reason)
			}
			if err != nil {
				failures = append(failures, failure{c.ID, fmt.Errorf("%s: %w\n\twant:   %v\n\toracle: %v",
					r.way, err, c.want, oracleAnswer(r.resolver.State(), c.Case))})
			}
		}
	}
	return failures, nil
}

// want returns what is expected in the mode. Where a daemon hears of objects, they may
// have become others than they were meant to be.
func (r *run) want(c *Case) Expect {
	e := c.expected(r.d.Mode)
	if r.daemon != nil {
		e = oracleAnswer(r.resolver.State(), c)
	}
	if e.Verdict == proxy.Untouched && r.d.Binds != nil && r.d.Binds(r.resolver.State(), c.Dst) {
		return Expect{Verdict: proxy.Reject}
	}
	return e
}

// How long and how often. An answer takes less than a millisecond here, so where
// silence is expected a wrong answer does not need long to be noticed. Where
// an answer is expected, even a very busy machine must have time to give it.
const (
	silenceTimeout = 200 * time.Millisecond // when silence is expected
	answerTimeout  = 4 * time.Second        // when anything else is
	minTries       = 8                      // per endpoint, if all have answered by then
	maxTries       = 30                     // per endpoint, before one counts as missing
	otherTries     = 2                      // when no endpoint is expected
)

// caseRun is one case while it is played.
type caseRun struct {
	*Case
	want         Expect
	tries        int
	answers      []netip.AddrPort // who answered, in order
	wrongAnswers []netip.AddrPort // who answered and should not have, or not so
	err          error            // the first surprise

	sticky         bool             // the client is remembered
	client         affinityClient   // who that is
	allowed        []netip.AddrPort // whom it must be sent to one of; nil: anybody
	unboundRun     *caseRun         // the same with unbound sockets, if there is one
	unbound        bool
	wantTranslated float64 // which share, at the socket, if the mode acts on sockets
	translated     int
	sockets        int // that were made for it
}

// remaining returns how many connections are still to be made.
func (r *caseRun) remaining() int {
	switch {
	case r.err != nil:
		return 0
	case r.want.Verdict != proxy.Forward:
		return otherTries - r.tries
	case r.sticky && r.tries < 2: // the first comes alone: of two at the same time both would be
		return []int{1, minTries}[r.tries]
	case r.sticky:
		return 0
	case r.tries == 0 || (len(r.want.missing(r.answers)) > 0 || r.tooFewTranslated()) && r.tries < r.triesLimit():
		return minTries * len(r.want.To)
	default:
		return 0
	}
}

// triesLimit returns how often a case is tried. Who draws twice gets itself less often.
func (r *caseRun) triesLimit() int {
	n := len(r.want.To)
	if r.unbound && r.From == FromSelf {
		n *= n
	}
	return maxTries * n
}

// tooFewTranslated reports whether too few flows were translated at the socket.
func (r *caseRun) tooFewTranslated() bool {
	return r.unbound && float64(4*r.translated) < float64(r.tries)*r.wantTranslated
}

// result returns what was wrong, or nil.
func (r *caseRun) result() error {
	missing := r.want.missing(r.answers)
	switch {
	case r.err != nil:
		return r.err
	case r.sticky:
		return r.checkAffinity()
	case len(missing) > 0:
		return fmt.Errorf("%v never answered in %d connections", missing, r.tries)
	case r.tooFewTranslated():
		return fmt.Errorf("only %d of %d flows were translated at the socket", r.translated, r.tries)
	case r.wantTranslated == 0 && r.translated > 0:
		return fmt.Errorf("%d of %d flows were translated at the socket, and none may be", r.translated, r.tries)
	case r.unboundRun != nil:
		return wrap("unbound", r.unboundRun.result())
	default:
		return nil
	}
}

// checkAffinity wants a client to be sent where it was sent before. Only its first connection
// may have been made together with those of another case.
func (r *caseRun) checkAffinity() error {
	all, answers := r.answers, slices.Clone(r.answers[1:])
	if r.unboundRun != nil {
		if r.unboundRun.err != nil {
			return wrap("unbound", r.unboundRun.err)
		}
		all, answers = slices.Concat(all, r.unboundRun.answers), append(answers, r.unboundRun.answers[1:]...)
	}
	lost := func(a netip.AddrPort) bool { return r.allowed != nil && !slices.Contains(r.allowed, a) }
	switch {
	case len(slices.Compact(answers)) > 1:
		return fmt.Errorf("a client with session affinity was sent to %v", all)
	case slices.ContainsFunc(all, lost):
		return fmt.Errorf("%v, a client of %v that an earlier phase sent to %v, was sent to %v", r.Src, r.to(), r.allowed, all)
	}
	return nil
}

// checkRefused returns what is wrong with a case that the mode cannot do for some
// reason: that it can, after all, or that somebody answers whom nobody asked.
func (r *caseRun) checkRefused(reason string) error {
	stranger := func(a netip.AddrPort) bool { return a != r.to() }
	switch {
	case r.want.Verdict == proxy.Forward && r.result() == nil:
		return fmt.Errorf("answered, though %s", reason)
	case slices.ContainsFunc(r.wrongAnswers, stranger):
		return fmt.Errorf("answered by %v, though %s", r.wrongAnswers, reason)
	default:
		return fmt.Errorf("%s: %w", reason, lab.ErrUntried)
	}
}

// runCases sends the packets of cases. Those that need an address bound to the node
// come one by one after the others, as an address that is the node's changes
// what the others would see.
func (b *testbed) runCases(ctx context.Context, runs []*caseRun) error {
	bound := func(r *caseRun) bool { return r.From == FromVIP }
	err := b.runTogether(ctx, slices.DeleteFunc(slices.Clone(runs), bound))
	for _, r := range runs {
		if bound(r) {
			err = errors.Join(err, b.runBound(ctx, r))
		}
	}
	return err
}

// runBound plays one case while its source is an address of the node.
func (b *testbed) runBound(ctx context.Context, r *caseRun) (err error) {
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
	return b.runTogether(ctx, []*caseRun{r})
}

// runTogether makes connections until each case is decided.
func (b *testbed) runTogether(ctx context.Context, all []*caseRun) error {
	all = b.addUnboundRuns(all)
	if err := b.warmUp(ctx, all); err != nil {
		return err
	}
	for {
		var next []*caseRun
		for _, r := range all {
			next = append(next, slices.Repeat([]*caseRun{r}, r.remaining())...)
		}
		if len(next) == 0 {
			return nil
		}
		if err := b.connectAll(ctx, next); err != nil {
			return err
		}
	}
}

// connectAll makes one connection for each case in the list, on all hosts at once.
func (b *testbed) connectAll(ctx context.Context, list []*caseRun) error {
	byHost := map[*lab.Host][]*caseRun{}
	for _, r := range list {
		h := b.clientHost(r.Case)
		byHost[h] = append(byHost[h], r)
	}
	var group errgroup.Group
	for h, list := range byHost {
		var flows []traffic.Flow
		for _, r := range list {
			patience := answerTimeout
			if r.want.Verdict == proxy.Drop {
				patience = b.dropTimeout
			}
			flow := traffic.Flow{Protocol: r.protocol(), Src: r.Src, Dst: r.to(), Patience: patience}
			if r.unbound {
				flow.Socket, flow.BeforeClose = r.socket(), func(fd int) { b.inspect(r, fd) }
			}
			flows = append(flows, flow)
		}
		group.Go(func() error {
			seen, err := h.Probe(ctx, flows)
			for i := range seen {
				b.record(list[i], seen[i])
			}
			return err
		})
	}
	return group.Wait()
}

func (b *testbed) record(r *caseRun, seen traffic.Seen) {
	r.tries++
	b.counters.flows.Add(1)
	err := r.want.check(r.Case, seen, b.masqueradeVisible(r.Src, seen.By))
	r.err = cmp.Or(r.err, err)
	switch answered := seen.Fate == traffic.Answered; {
	case answered && err == nil:
		r.answers = append(r.answers, seen.By)
	case answered:
		r.wrongAnswers = append(r.wrongAnswers, seen.By)
	}
}
