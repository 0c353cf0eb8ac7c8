package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// Story is a row of steps: what one packet does to the next.
type Story struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	World
	Steps []*Step `json:"steps"`
}

// Step is one thing that happens.
type Step struct {
	Do string `json:"do"` // connect, wait, remove_endpoint, change, resync, reopen

	// connect: each client opens one connection after another.
	From     Place        `json:"from"`
	Src      []netip.Addr `json:"src"`     // if it is not said, the table's client at that place
	Clients  int          `json:"clients"` // or that many clients outside
	Dst      netip.Addr   `json:"dst"`
	DPort    uint16       `json:"dport"`
	Proto    proto        `json:"proto"`
	Times    int          `json:"times"`
	Every    float64      `json:"every"`    // seconds between two connections
	Assert   []string     `json:"assert"`   // one_backend, all_backends, even, or same_as, never_as, moved_from and a name
	Remember string       `json:"remember"` // under which name

	Seconds float64 `json:"seconds"` // wait
	Which   string  `json:"which"`   // remove_endpoint: the backend that was remembered
	Change  Phase   `json:"change"`  // change
}

func (s *Story) complete() error {
	if err := s.named(); err != nil {
		return err
	}
	for i, st := range s.Steps {
		if err := st.complete(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

func (st *Step) complete() error {
	switch st.Do {
	case "wait", "remove_endpoint", "change", "resync", "reopen":
		return nil
	case "connect":
	default:
		return fmt.Errorf("do is %q", st.Do)
	}
	family := proxy.FamilyOf(st.Dst)
	first := [...]netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 10}), netip.MustParseAddr("2600:5200::10")}
	for a := first[family]; len(st.Src) < st.Clients; a = a.Next() {
		st.From, st.Src = FromOutside, append(st.Src, a)
	}
	for _, a := range st.Assert {
		word, name, _ := strings.Cut(a, " ")
		ofName := word == "same_as" || word == "never_as" || word == "moved_from"
		alone := word == "one_backend" || word == "all_backends" || word == "even"
		if !ofName && !alone || ofName != (name != "") {
			return fmt.Errorf("assert is %q", a)
		}
	}
	if st.Src != nil {
		return nil
	}
	src, err := client(st.From, family)
	st.Src = []netip.Addr{src}
	return err
}

// cases returns the step's connections as cases, one per client.
func (st *Step) cases() []*Case {
	var out []*Case
	for _, src := range st.Src {
		out = append(out, &Case{From: st.From, Src: src, Dst: st.Dst, DPort: st.DPort, Proto: st.Proto})
	}
	return out
}

// tell plays a story twice: its changes reach the kernel as whole states, and
// as increments.
func (s *stage) tell(ctx context.Context, story *Story) []Failure {
	var out []Failure
	s.last = story.ID
	for _, how := range []string{"changes by Sync", "changes by Apply"} {
		t := &telling{stage: s, story: story, world: &story.World, increments: how == "changes by Apply"}
		if err := t.run(ctx); err != nil {
			out = append(out, Failure{Group: story.ID, How: how, Got: err.Error()})
		}
	}
	return out
}

// telling is a story while it is played.
type telling struct {
	*stage
	story      *Story
	increments bool
	world      *World
	resolver   *resolve.Resolver
	remembered map[string]backends
}

// backends are the endpoints that answered a client, in order.
type backends map[netip.Addr][]netip.AddrPort

func (t *telling) run(ctx context.Context) (err error) {
	t.remembered = map[string]backends{}
	stop, err := t.set()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := t.restart(ctx); err != nil {
		return err
	}
	for i, st := range t.story.Steps {
		if err := t.step(ctx, st); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, st.Do, err)
		}
	}
	return nil
}

// set prepares the lab. What an earlier telling left in the kernel goes.
func (t *telling) set() (stop func() error, err error) {
	c := newCast()
	worlds := []*World{&t.story.World}
	for _, st := range t.story.Steps {
		if st.Do == "change" {
			w, err := worlds[len(worlds)-1].after(st.Change)
			if err != nil {
				return nil, err
			}
			worlds = append(worlds, w)
		}
		for _, k := range st.cases() {
			if err := c.addCase(k); err != nil {
				return nil, err
			}
		}
	}
	for _, w := range worlds {
		if err := c.addWorld(w); err != nil {
			return nil, err
		}
	}
	if err := t.settle(c.pods); err != nil {
		return nil, err
	}
	return t.listen(c.listeners)
}

// restart begins with an empty kernel state.
func (t *telling) restart(ctx context.Context) error {
	var err error
	if t.resolver, err = t.world.bare(t.d.Mode); err != nil {
		return err
	}
	if err := t.sync(ctx, t.resolver.State()); err != nil {
		return err
	}
	return t.follow(ctx, t.world.begin(seeded(t.story.ID)))
}

// follow tells the resolver events and the kernel what came of them.
func (t *telling) follow(ctx context.Context, events []event) error {
	for _, e := range events {
		e(t.resolver)
		if !t.increments {
			continue
		}
		if err := t.apply(ctx, t.resolver.Update()); err != nil {
			return err
		}
	}
	if t.increments {
		return nil
	}
	t.resolver.Update()
	return t.sync(ctx, t.resolver.State())
}

func (t *telling) step(ctx context.Context, st *Step) error {
	switch st.Do {
	case "connect":
		return t.connect(ctx, st)
	case "wait":
		return pause(ctx, st.Seconds)
	case "resync":
		return t.sync(ctx, t.resolver.State())
	case "change":
		return t.change(ctx, st.Change)
	case "remove_endpoint":
		return t.removeEndpoint(ctx, st.Which)
	case "reopen":
		// A new process has a new resolver, which may number endpoints otherwise.
		var err error
		if t.resolver, err = t.world.resolver(t.d.Mode); err != nil {
			return err
		}
		if err := t.reopen(ctx); err != nil {
			return err
		}
		return t.sync(ctx, t.resolver.State())
	default:
		panic("unknown step " + st.Do)
	}
}

// pause lets real time pass: what expires does so by the kernel's clock.
func pause(ctx context.Context, seconds float64) error {
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *telling) change(ctx context.Context, p Phase) error {
	next, err := t.world.after(p)
	if err != nil {
		return err
	}
	var events []event
	for _, tr := range t.world.changes(next, seeded(t.story.ID)) {
		// No detours here: what a client is bound to must survive the change,
		// not an endpoint's absence.
		events = append(events, tr[len(tr)-1])
	}
	t.world = next
	return t.follow(ctx, events)
}

// removeEndpoint takes the backend that a client was bound to out of every
// slice.
func (t *telling) removeEndpoint(ctx context.Context, name string) error {
	gone := map[string]bool{}
	for _, list := range t.remembered[name] {
		gone[list[0].Addr().String()] = true
	}
	var p Phase
	for _, s := range t.world.Slices {
		fewer := *s
		fewer.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e Endpoint) bool { return gone[e.IP] })
		p.Slices = append(p.Slices, &fewer)
	}
	return t.change(ctx, p)
}

// connect opens the connections of a step and checks what it asserts.
func (t *telling) connect(ctx context.Context, st *Step) error {
	got := backends{}
	cases := st.cases()
	wants := map[*Case]Expect{}
	for _, c := range cases {
		wants[c] = answer(t.resolver.State(), c)
	}
	for i := range max(1, st.Times) {
		if i > 0 && st.Every > 0 {
			if err := pause(ctx, st.Every); err != nil {
				return err
			}
		}
		if err := t.once(ctx, wants, got); err != nil {
			return fmt.Errorf("connection %d: %w", i+1, err)
		}
	}
	for _, a := range st.Assert {
		word, name, _ := strings.Cut(a, " ")
		if err := t.assert(word, got, t.remembered[name], wants[cases[0]]); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	if st.Remember != "" {
		t.remembered[st.Remember] = got
	}
	return nil
}

// once opens one connection of each client.
func (t *telling) once(ctx context.Context, wants map[*Case]Expect, got backends) error {
	byHost := map[*lab.Host][]*Case{}
	for c := range wants {
		h := t.speaker(c)
		byHost[h] = append(byHost[h], c)
	}
	for h, list := range byHost {
		var try []traffic.Flow
		for _, c := range list {
			try = append(try, traffic.Flow{Protocol: c.Proto.protocol(), Src: c.Src, Dst: c.to(), Patience: untilFailure})
		}
		seen, err := h.Probe(ctx, try)
		if err != nil {
			return err
		}
		for i, c := range list {
			visible := func(a netip.AddrPort) bool { return t.visible(c, a) }
			if err := wants[c].judge(c, seen[i], visible); err != nil {
				return err
			}
			got[c.Src] = append(got[c.Src], seen[i].By)
		}
	}
	return nil
}
