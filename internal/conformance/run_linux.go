package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// testbeds is how many labs are used at once. Most of a lab's time is waiting
// for silence, so there are more than processors.
const testbeds = 4

// Run plays the whole table against a dataplane. Every case is a subtest
// named group/case.
func Run(t *testing.T, d Dataplane) {
	lab.Require(t)
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	s := &scheduler{d: d}
	// What waits longest goes first.
	for _, story := range all.Stateful {
		s.add(t, story.ID, nil, func(ctx context.Context, b *testbed) []failure { return b.runStory(ctx, story) })
	}
	for _, g := range all.Groups {
		if cases := g.playing(d.Mode); len(cases) > 0 {
			s.add(t, g.ID, cases, func(ctx context.Context, b *testbed) []failure {
				return append(g.oracle(), b.runGroup(ctx, g)...)
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
	s := &scheduler{d: d}
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
	d    Dataplane
	jobs []job
}

// add makes a job a subtest, which takes part unless it was not asked for.
func (s *scheduler) add(t *testing.T, id string, cases []*Case, play func(context.Context, *testbed) []failure) {
	t.Run(id, func(t *testing.T) {
		j := job{play, make(chan []failure, 1)}
		s.jobs = append(s.jobs, j)
		t.Parallel()
		report(t, s.d.Mode, cases, <-j.done)
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
			b, err := newTestbed(ctx, s.d)
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
	Mode string // the table's column: nftables or iptables

	// Open is called inside the node's network namespace, and so is every
	// method of what it returns. Several may be open at once, each in a
	// namespace of its own.
	Open func(context.Context) (proxy.Dataplane, error)
}

// report makes failures those of the test and of its cases.
func report(t *testing.T, mode string, cases []*Case, failures []failure) {
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
			for _, err := range byCase[c.ID] {
				if errors.Is(err, errors.ErrUnsupported) {
					t.Skip(err)
				}
				t.Error(err)
			}
			if t.Failed() && mode != "" {
				t.Logf("replay: go test ./internal/dataplane/%s -run '%s'", mode, t.Name())
			}
		})
	}
}
