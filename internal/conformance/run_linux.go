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
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// Run runs the table against a dataplane, but only a share of the crossed decision tables if
// [ShareVariable] says so. Every case is a subtest named group/case.
func Run(t *testing.T, d Dataplane) {
	lab.Require(t)
	parts, err := loadParts()
	crossed, failed := currentShare()
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	t.Log(crossed)
	s := newScheduler(t, d)
	// Stories wait longest, so they start first.
	for _, p := range parts {
		for _, story := range p.Stateful {
			s.add(t, story.ID, nil, func(ctx context.Context, b *testbed) []failure { return d.checkStory(story.ID, b.runStory(ctx, story)) })
		}
	}
	for _, p := range parts {
		if p.Theme == decisionTheme {
			p.Groups = crossed.groups(p.Groups)
		}
		s.addGroups(t, p.Groups)
	}
	s.start(t)
}

// RunBridged runs the groups of the table that are written out, not the crossed decision tables, on
// a node whose pods share a bridge ([lab.Config]).
func RunBridged(t *testing.T, d Dataplane) {
	lab.Require(t)
	parts, err := loadParts()
	if err != nil {
		t.Fatal(err)
	}
	s := newScheduler(t, d)
	s.bridged = true
	for _, p := range parts {
		if p.Theme != decisionTheme {
			s.addGroups(t, p.Groups)
		}
	}
	s.start(t)
}

// addGroups adds a job for each group that has cases for the mode.
func (s *scheduler) addGroups(t *testing.T, groups []*Group) {
	for _, g := range groups {
		if cases := g.casesFor(s.d.Mode); len(cases) > 0 {
			s.add(t, g.ID, cases, func(ctx context.Context, b *testbed) []failure {
				return append(g.checkOracle(), b.runGroup(ctx, g)...)
			})
		}
	}
}

// RunRandom runs n random groups, each with several phases, and compares the results of random
// packets with the oracle's answers. Group i is generated from seed+i alone and is the subtest
// seed=<seed+i>.
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

// Dataplane describes a dataplane under test.
type Dataplane struct {
	Mode string // selects the cases and their expectations

	// Binds reports whether the mode assigns an address of a Service to the node, so that the node
	// rejects packets to its other ports, which other modes leave alone. Nil means that it never
	// does.
	Binds func(*proxy.State, netip.Addr) bool

	// Relays says that a process relays connections. It works only if bridges do not pass packets
	// to netfilter. Endpoints on the client's bridge see the node's address, since they would reply
	// to the client's directly.
	Relays bool

	// HandsOver says that Run of the dataplane returns an error when another instance takes over.
	HandsOver bool

	// Cannot maps each story that must fail in this mode to the reason.
	Cannot map[string]string

	// Refuses maps each protocol that the mode does not support to the reason. The mode must refuse
	// their rows. Their cases still run, and fail if an endpoint answers.
	Refuses map[proxy.Protocol]string

	// Open is called inside the node's network namespace, and so are all methods of the result.
	// Several may be open at once, each in its own namespace.
	Open func(context.Context) (proxy.Dataplane, error)

	// Daemon starts a daemon on a node, which is then tested instead of the dataplane.
	Daemon func(node *lab.Host) (Daemon, error)

	// ForgetsClients says that session affinity does not survive a restart of the daemon.
	ForgetsClients bool

	// Sockets describes and opens a mode that acts on sockets. Nil means that it does not.
	Sockets *Sockets
}

// checkStory inverts the result of a story that the mode cannot support: it must fail.
func (d *Dataplane) checkStory(story string, failures []failure) []failure {
	why, cannot := d.Cannot[story]
	switch {
	case !cannot:
		return failures
	case len(failures) == 0:
		return []failure{{err: fmt.Errorf("passed, although %s", why)}}
	default:
		return nil
	}
}

// report reports failures in the test of the group and the subtests of its cases.
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

// splitUntried separates failures from reasons why the case cannot run here. A case runs in several
// ways, so it may have both.
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

// run is the execution of a group or story in one of two ways: each change reaches the kernel as a
// whole state (Sync) or as increments (Apply).
type run struct {
	*testbed
	way        string
	increments bool
	rng        *rand.Rand
	world      *World
	resolver   *resolve.Resolver
	remembered map[string]backends        // by the name that a step gave
	bindings   map[affinityClient]binding // of clients with session affinity
}

// applyInitial brings the kernel to the first world. With increments it first syncs the empty
// state, to remove what the previous group left; a Sync of the whole state must do that by itself.
func (r *run) applyInitial(ctx context.Context) error {
	if r.increments {
		if err := r.sync(ctx, r.resolver.State()); err != nil {
			return err
		}
	}
	return r.applyEvents(ctx, r.world.begin(r.rng))
}

// applyEvents passes events to the resolver and the resulting changes to the kernel.
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

// runBothWays runs a function once with whole states and once with increments; a daemon runs it
// once, as it applies changes its own way.
func (b *testbed) runBothWays(id string, w *World, do func(*run) error) (errs []error) {
	ways := []string{"kernel, state at once", "kernel, state by increments"}
	if b.daemon != nil {
		ways = []string{"daemon"}
	}
	for i, how := range ways {
		rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(id)))) // reproducible
		r := &run{b, how, i == 1, rng, w, w.emptyResolver(b.d.Mode), map[string]backends{}, map[affinityClient]binding{}}
		errs = append(errs, wrap(how, do(r)))
	}
	return errs
}

func (b *testbed) runGroup(ctx context.Context, g *Group) (failures []failure) {
	after := "run after " + cmp.Or(b.lastGroup, "nothing") // whose state the kernel still has
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
		failures = append(failures, failure{err: fmt.Errorf("%s: %w", after, err)})
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
		// Check before every phase: half of the ports may not be enough for all of them.
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

// want returns the expected result. For a daemon it is the oracle's answer, because the source may
// have changed the objects.
func (r *run) want(c *Case) Expect {
	e := c.expected(r.d.Mode)
	if r.daemon != nil {
		e = oracleAnswer(r.resolver.State(), c)
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

// Timeouts and numbers of connections. An answer takes less than a millisecond here, so where
// silence is expected a short wait is enough to notice a wrong answer. Where an answer is expected,
// the timeout allows for a very busy machine.
const (
	silenceTimeout = 200 * time.Millisecond // where silence is expected
	answerTimeout  = 4 * time.Second        // otherwise
	minTries       = 8                      // per endpoint, before checking whether all have answered
	maxTries       = 30                     // per endpoint, before one is reported missing
	otherTries     = 2                      // where no endpoint is expected to answer
)

// caseRun is the execution of one case.
type caseRun struct {
	*Case
	want         Expect
	tries        int
	answers      []netip.AddrPort // who answered, in order
	wrongAnswers []netip.AddrPort // of wrong endpoints, or with the wrong client address
	err          error            // the first wrong result

	sticky         bool             // the row has session affinity
	client         affinityClient   // set if sticky
	allowed        []netip.AddrPort // endpoints that session affinity permits; nil means any
	unboundRun     *caseRun         // the same case with unbound sockets; nil means none
	unbound        bool
	wantTranslated float64 // the share of flows to be translated at the socket
	translated     int
	sockets        int // made so far; see socket
}

// remaining returns how many connections are still to be made.
func (r *caseRun) remaining() int {
	switch {
	case r.err != nil:
		return 0
	case r.want.Verdict != proxy.Forward:
		return otherTries - r.tries
	case r.sticky && r.tries < 2: // the first connects alone: two concurrent ones would both be first
		return []int{1, minTries}[r.tries]
	case r.sticky:
		return 0
	case r.tries == 0 || (len(r.want.missing(r.answers)) > 0 || r.tooFewTranslated()) && r.tries < r.triesLimit():
		return minTries * len(r.want.To)
	default:
		return 0
	}
}

// triesLimit returns the maximum number of connections. A flow that the socket programs leave to
// the rules is balanced twice, so a pod reaches itself less often.
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

// result returns an error if the case had a wrong result.
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

// checkAffinity checks that a client with session affinity always reached the same endpoint. Its
// first connection is exempt from the comparison, because another case of the same client may have
// connected at the same time.
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

// checkRefused checks a case whose protocol the mode refuses: it must not be forwarded, and nobody
// but the destination itself may answer. Otherwise the case counts as untried.
func (r *caseRun) checkRefused(reason string) error {
	stranger := func(a netip.AddrPort) bool { return a != r.to() }
	switch {
	case r.want.Verdict == proxy.Forward && r.result() == nil:
		return fmt.Errorf("forwarded correctly, although %s", reason)
	case slices.ContainsFunc(r.wrongAnswers, stranger):
		return fmt.Errorf("answered by %v, although %s", r.wrongAnswers, reason)
	default:
		return fmt.Errorf("%s: %w", reason, lab.ErrUntried)
	}
}

// runCases connects the clients of all cases. Cases that need an address bound to the node run
// afterwards, one by one, because the address would change the results of the others.
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

// runBound runs one case while its source is an address of the node.
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

// runTogether makes connections until the result of each case is known.
func (b *testbed) runTogether(ctx context.Context, all []*caseRun) error {
	all = b.addUnboundRuns(all)
	for {
		// A mode may forget what it learnt of a client, because addresses of the node change while a
		// group begins, and learn it anew.
		if err := b.warmUp(ctx, slices.DeleteFunc(slices.Clone(all), func(r *caseRun) bool { return r.tries > 0 && !r.tooFewTranslated() })); err != nil {
			return err
		}
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

// connectAll makes one connection for each item of the list, on all hosts concurrently.
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
