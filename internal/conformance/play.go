package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

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

// audition is one case while it is played.
type audition struct {
	c     *Case
	want  Expect
	tries int
	seen  map[netip.AddrPort]bool
	err   error // the first surprise
}

// next returns how many connections are still to be made.
func (a *audition) next() int {
	switch {
	case a.err != nil:
		return 0
	case a.want.Verdict != proxy.Forward:
		return otherTries - a.tries
	case a.tries == 0:
		return fewTries * len(a.want.To)
	case len(a.want.missing(a.seen)) > 0 && a.tries < manyTries*len(a.want.To):
		return fewTries * len(a.want.To)
	default:
		return 0
	}
}

// verdict returns what was wrong, or nil.
func (a *audition) verdict() error {
	if a.err != nil {
		return a.err
	}
	if missing := a.want.missing(a.seen); len(missing) > 0 {
		return fmt.Errorf("%v never answered in %d connections", missing, a.tries)
	}
	return nil
}

// play sends the packets of cases and returns what was wrong with each. Those
// that need an address bound to the node come one by one after the others, as
// an address that is the node's changes what the others would see.
func (s *stage) play(ctx context.Context, cases []*Case) (map[*Case]error, error) {
	var together []*audition
	wrong := map[*Case]error{}
	for _, c := range cases {
		if c.From != FromVIP {
			together = append(together, s.audition(c))
		}
	}
	if err := s.playTogether(ctx, together); err != nil {
		return nil, err
	}
	for _, a := range together {
		wrong[a.c] = a.verdict()
	}
	for _, c := range cases {
		if c.From == FromVIP {
			a := s.audition(c)
			if err := s.playBound(ctx, a); err != nil {
				return nil, err
			}
			wrong[c] = a.verdict()
		}
	}
	return wrong, nil
}

func (s *stage) audition(c *Case) *audition {
	return &audition{c: c, want: c.in(s.d.Mode), seen: map[netip.AddrPort]bool{}}
}

// playBound plays one case while its source is an address of the node.
func (s *stage) playBound(ctx context.Context, a *audition) error {
	n := s.lab.Node()
	if err := n.Bind(a.c.Src); err != nil {
		return err
	}
	if a.c.Dst != a.c.Src {
		return errors.Join(s.playTogether(ctx, []*audition{a}), n.Unbind(a.c.Src))
	}
	l, err := n.Listen(a.c.Proto.protocol(), a.c.to())
	if err != nil {
		return errors.Join(err, n.Unbind(a.c.Src))
	}
	return errors.Join(s.playTogether(ctx, []*audition{a}), l.Close(), n.Unbind(a.c.Src))
}

// playTogether makes connections until each case is decided.
func (s *stage) playTogether(ctx context.Context, all []*audition) error {
	for {
		byHost := map[*lab.Host][]*audition{}
		for _, a := range all {
			for range a.next() {
				h := s.speaker(a.c)
				byHost[h] = append(byHost[h], a)
			}
		}
		if len(byHost) == 0 {
			return nil
		}
		if err := s.round(ctx, byHost); err != nil {
			return err
		}
	}
}

// round makes one connection for each audition in the lists, on all hosts at
// once.
func (s *stage) round(ctx context.Context, byHost map[*lab.Host][]*audition) error {
	type result struct {
		list []*audition
		seen []traffic.Seen
		err  error
	}
	results := make(chan result, len(byHost))
	var wg sync.WaitGroup
	for h, list := range byHost {
		wg.Go(func() {
			seen, err := h.Probe(ctx, s.flows(list))
			results <- result{list, seen, err}
		})
	}
	wg.Wait()
	close(results)
	var errs []error
	for r := range results {
		errs = append(errs, r.err)
		for i, seen := range r.seen {
			s.note(r.list[i], seen)
		}
	}
	return errors.Join(errs...)
}

func (s *stage) flows(list []*audition) []traffic.Flow {
	var out []traffic.Flow
	for _, a := range list {
		f := traffic.Flow{Protocol: a.c.Proto.protocol(), Src: a.c.Src, Dst: a.c.to(), Patience: untilFailure}
		if a.want.Verdict == proxy.Drop {
			f.Patience = s.silence
		}
		out = append(out, f)
	}
	return out
}

// note takes one observation of a case.
func (s *stage) note(a *audition, seen traffic.Seen) {
	a.tries++
	visible := func(endpoint netip.AddrPort) bool { return s.visible(a.c, endpoint) }
	if err := a.want.judge(a.c, seen, visible); err != nil {
		if a.err == nil {
			a.err = err
		}
		return
	}
	if seen.Fate == traffic.Answered {
		a.seen[seen.By] = true
	}
}
