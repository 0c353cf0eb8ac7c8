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
func (b *testbed) playBound(ctx context.Context, r *caseRun) (err error) {
	n := b.lab.Node()
	if err := n.Bind(r.Src); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Unbind(r.Src)) }()
	if r.Dst == r.Src {
		l, err := n.Listen(r.protocol(), r.to())
		if err != nil {
			return err
		}
		return errors.Join(b.playTogether(ctx, []*caseRun{r}), l.Close())
	}
	return b.playTogether(ctx, []*caseRun{r})
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
