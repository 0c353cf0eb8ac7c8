package conformance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
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
		s.add(t, story.ID, nil, func(ctx context.Context, b *testbed) []failure { return d.judge(story.ID, b.runStory(ctx, story)) })
	}
	s.addGroups(t, all.Groups)
	s.start(t)
}

// RunBridged plays the groups of the table that are written out, not the crossed
// decision tables, on a node whose pods share a bridge ([lab.Config.Bridged]).
func RunBridged(t *testing.T, d Dataplane) {
	lab.Require(t)
	parts, err := loadParts()
	if err != nil {
		t.Fatal(err)
	}
	s := newScheduler(t, d)
	s.bridged = true
	for _, p := range parts {
		if p.Theme != crossed {
			s.addGroups(t, p.Groups)
		}
	}
	s.start(t)
}

// addGroups makes each group a subtest that has cases for the mode.
func (s *scheduler) addGroups(t *testing.T, groups []*Group) {
	d := s.d
	for _, g := range groups {
		if cases := g.playing(d.Mode); len(cases) > 0 {
			s.add(t, g.ID, cases, func(ctx context.Context, b *testbed) []failure {
				return append(g.oracle(), b.runGroup(ctx, g)...)
			})
		}
	}
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
				failures = append(failures, failure{err: g.explain(d.Mode)})
			}
			return failures
		})
	}
	s.start(t)
}

// job is something to be played on a testbed.
type job struct {
	play func(context.Context, *testbed) []failure
	done chan []failure
}

// scheduler shares the testbeds among the jobs. The testing package runs no
// more subtests at once than there are processors, so the subtests only wait
// and report; the playing is done by goroutines of our own.
type scheduler struct {
	d       Dataplane
	bridged bool             // the pods of a node share a bridge
	cgroups *traffic.Cgroups // if the dataplane acts on sockets
	tally   tally
	jobs    []job
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
					j.done <- j.play(ctx, b)
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

	// Relays says that a process relays connections. It works only if bridges do not pass
	// packets to netfilter. Endpoints on the client's bridge see the node instead of the
	// client, which they would answer past the process.
	Relays bool

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

	// Forgets says that what a daemon knows of clients dies with it.
	Forgets bool

	// Sockets says that the mode acts on sockets, and opens it. Nil: it does not.
	Sockets *Sockets
}

// judge wants a story to fail that the mode cannot play.
func (d *Dataplane) judge(story string, failures []failure) []failure {
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
			failed, untried := sift(byCase[c.ID])
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

// sift parts what went wrong in one way of playing a case from why the case could not be
// tried in another.
func sift(errs []error) (failed []error, untried error) {
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
	how        string
	increments bool
	rng        *rand.Rand
	world      *World
	resolver   *resolve.Resolver
	remembered map[string]backends  // by a story's steps
	bindings   map[clientOf]binding // of clients that are remembered
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

// inBothWays plays something with whole states and by increments. A daemon has ways
// of its own.
func (b *testbed) inBothWays(id string, w *World, play func(*run) error) (errs []error) {
	ways := []string{"kernel, state at once", "kernel, state by increments"}
	if b.daemon != nil {
		ways = []string{"daemon"}
	}
	for i, how := range ways {
		rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(id)))) // the same at each run
		r := &run{b, how, i == 1, rng, w, w.nothing(b.d.Mode), map[string]backends{}, map[clientOf]binding{}}
		errs = append(errs, within(how, play(r)))
	}
	return errs
}

func (b *testbed) runGroup(ctx context.Context, g *Group) (failures []failure) {
	how := "play after " + cmp.Or(b.last, "nothing") // whose state the kernel still has
	b.last = g.ID
	worlds := g.worlds()
	err := b.prepare(worlds, g.playing(b.d.Mode))
	if err == nil {
		err = errors.Join(b.inBothWays(g.ID, worlds[0], func(r *run) error {
			found, err := r.phases(ctx, g, worlds)
			failures = append(failures, found...)
			return err
		})...)
	}
	if err != nil {
		failures = append(failures, failure{err: fmt.Errorf("%s: %w", how, err)})
	}
	return failures
}

func (r *run) phases(ctx context.Context, g *Group, worlds []*World) (failures []failure, err error) {
	for i, p := range g.Phases {
		switch {
		case r.daemon != nil:
			err = r.tell(ctx, p, worlds[i])
		case i == 0:
			err = r.begin(ctx)
		default:
			err = r.follow(ctx, shuffle(worlds[i-1].changes(worlds[i], r.rng), r.rng))
		}
		// Half of the ports may not be enough for all phases.
		if err := errors.Join(err, r.lab.Refresh()); err != nil {
			return failures, err
		}
		var runs []*caseRun
		for _, c := range g.playing(r.d.Mode, p.Name) {
			if err := r.lab.Supports(c.protocol()); err != nil {
				failures = append(failures, failure{c.ID, err})
			} else {
				runs = append(runs, r.caseRun(c))
			}
		}
		runs = append(runs, r.again(p.Name)...)
		if err := r.play(ctx, runs); err != nil {
			return failures, err
		}
		if r.daemon != nil {
			r.bind(runs)
		}
		for _, c := range runs {
			err := c.result()
			if reason := r.d.Refuses[c.protocol()]; reason != "" && c.want.Verdict != proxy.Untouched {
				err = c.differs(reason)
			}
			if err != nil {
				failures = append(failures, failure{c.ID, fmt.Errorf("%s: %w\n\twant:   %v\n\toracle: %v",
					r.how, err, c.want, answer(r.resolver.State(), c.Case))})
			}
		}
	}
	return failures, nil
}

// want returns what is expected in the mode. Where a daemon hears of objects, they may
// have become others than they were meant to be.
func (r *run) want(c *Case) Expect {
	e := c.in(r.d.Mode)
	if r.daemon != nil {
		e = answer(r.resolver.State(), c)
	}
	if e.Verdict == proxy.Untouched && r.d.Binds != nil && r.d.Binds(r.resolver.State(), c.Dst) {
		return Expect{Verdict: proxy.Reject}
	}
	if client := r.pods[c.Src].host; client != nil && r.bridged && r.d.Relays {
		e.To = maps.Clone(e.To)
		for to := range e.To {
			if endpoint := r.pods[to.Addr()].host; endpoint != nil && endpoint.SharesBridge(client) {
				e.To[to] = true
			}
		}
	}
	return e
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
	others  []netip.AddrPort // who answered and should not have, or not so
	err     error            // the first surprise

	sticky     bool             // the client is remembered
	client     clientOf         // who that is
	stay       []netip.AddrPort // whom it must be sent to one of; nil: anybody
	twin       *caseRun         // the same with unbound sockets, if there is one
	unbound    bool
	translates float64 // which share, at the socket, if the mode acts on sockets
	translated int
	sockets    int // that were made for it
}

// next returns how many connections are still to be made.
func (r *caseRun) next() int {
	switch {
	case r.err != nil:
		return 0
	case r.want.Verdict != proxy.Forward:
		return otherTries - r.tries
	case r.sticky && r.tries < 2: // the first comes alone: of two at the same time both would be
		return []int{1, fewTries}[r.tries]
	case r.sticky:
		return 0
	case r.tries == 0 || (len(r.want.missing(r.answers)) > 0 || r.short()) && r.tries < r.most():
		return fewTries * len(r.want.To)
	default:
		return 0
	}
}

// most returns how often a case is tried. Who draws twice gets itself less often.
func (r *caseRun) most() int {
	n := len(r.want.To)
	if r.unbound && r.From == FromSelf {
		n *= n
	}
	return manyTries * n
}

// short reports whether too few flows were translated at the socket.
func (r *caseRun) short() bool {
	return r.unbound && float64(4*r.translated) < float64(r.tries)*r.translates
}

// result returns what was wrong, or nil.
func (r *caseRun) result() error {
	missing := r.want.missing(r.answers)
	switch {
	case r.err != nil:
		return r.err
	case r.sticky:
		return r.kept()
	case len(missing) > 0:
		return fmt.Errorf("%v never answered in %d connections", missing, r.tries)
	case r.short():
		return fmt.Errorf("only %d of %d flows were translated at the socket", r.translated, r.tries)
	case r.translates == 0 && r.translated > 0:
		return fmt.Errorf("%d of %d flows were translated at the socket, and none may be", r.translated, r.tries)
	case r.twin != nil:
		return within("unbound", r.twin.result())
	default:
		return nil
	}
}

// kept wants a client to be sent where it was sent before. Only its first connection
// may have been made together with those of another case.
func (r *caseRun) kept() error {
	all, answers := r.answers, slices.Clone(r.answers[1:])
	if r.twin != nil {
		if r.twin.err != nil {
			return within("unbound", r.twin.err)
		}
		all, answers = slices.Concat(all, r.twin.answers), append(answers, r.twin.answers[1:]...)
	}
	lost := func(a netip.AddrPort) bool { return r.stay != nil && !slices.Contains(r.stay, a) }
	switch {
	case len(slices.Compact(answers)) > 1:
		return fmt.Errorf("a client with session affinity was sent to %v", all)
	case slices.ContainsFunc(all, lost):
		return fmt.Errorf("%v, a client of %v that an earlier phase sent to %v, was sent to %v", r.Src, r.to(), r.stay, all)
	}
	return nil
}

// differs returns what is wrong with a case that the mode cannot do for some
// reason: that it can, after all, or that somebody answers whom nobody asked.
func (r *caseRun) differs(reason string) error {
	stranger := func(a netip.AddrPort) bool { return a != r.to() }
	switch {
	case r.want.Verdict == proxy.Forward && r.result() == nil:
		return fmt.Errorf("answered, though %s", reason)
	case slices.ContainsFunc(r.others, stranger):
		return fmt.Errorf("answered by %v, though %s", r.others, reason)
	default:
		return fmt.Errorf("%s: %w", reason, lab.ErrUntried)
	}
}

// play sends the packets of cases. Those that need an address bound to the node
// come one by one after the others, as an address that is the node's changes
// what the others would see.
func (b *testbed) play(ctx context.Context, runs []*caseRun) error {
	bound := func(r *caseRun) bool { return r.From == FromVIP }
	err := b.playTogether(ctx, slices.DeleteFunc(slices.Clone(runs), bound))
	for _, r := range runs {
		if bound(r) {
			err = errors.Join(err, b.playBound(ctx, r))
		}
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
	all = b.addTwins(all)
	if err := b.warmUp(ctx, all); err != nil {
		return err
	}
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
			flow := traffic.Flow{Protocol: r.protocol(), Src: r.Src, Dst: r.to(), Patience: patience}
			if r.unbound {
				flow.Socket, flow.Closing = r.socket(), func(fd int) { b.inspect(r, fd) }
			}
			flows = append(flows, flow)
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

func (b *testbed) note(r *caseRun, seen traffic.Seen) {
	r.tries++
	b.tally.flows.Add(1)
	err := r.want.judge(r.Case, seen, b.visible(r.Src, seen.By))
	r.err = cmp.Or(r.err, err)
	switch answered := seen.Fate == traffic.Answered; {
	case answered && err == nil:
		r.answers = append(r.answers, seen.By)
	case answered:
		r.others = append(r.others, seen.By)
	}
}
