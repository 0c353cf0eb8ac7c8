package conformance

import (
	"context"
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
		s.add(t, &job{id: story.ID, play: func(ctx context.Context, b *testbed) []Failure {
			return b.runStory(ctx, story)
		}})
	}
	for _, g := range all.Groups {
		if cases := g.names(d.Mode); len(cases) > 0 {
			s.add(t, &job{id: g.ID, cases: cases, play: func(ctx context.Context, b *testbed) []Failure {
				return append(g.oracle(), b.runGroup(ctx, g)...)
			}})
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
		s.add(t, &job{id: g.ID, cases: g.names(d.Mode), play: func(ctx context.Context, b *testbed) []Failure {
			return g.explained(d.Mode, b.runGroup(ctx, g))
		}})
	}
	s.start(t)
}

// job is something to be played on a testbed.
type job struct {
	id       string
	cases    []string
	play     func(context.Context, *testbed) []Failure
	done     chan struct{}
	failures []Failure // once done is closed
}

// scheduler shares the testbeds among the jobs. The testing package runs no
// more subtests at once than there are processors, so the subtests only wait
// and report; the playing is done by goroutines of our own.
type scheduler struct {
	d    Dataplane
	jobs []*job
}

// add makes the job a subtest, which takes part unless it was not asked for.
func (s *scheduler) add(t *testing.T, j *job) {
	t.Helper()
	t.Run(j.id, func(t *testing.T) {
		j.done = make(chan struct{})
		s.jobs = append(s.jobs, j)
		t.Parallel()
		<-j.done
		report(t, s.d.Mode, j.cases, j.failures)
	})
}

// start plays all jobs. The subtests wait for it.
func (s *scheduler) start(t *testing.T) {
	ctx := t.Context()
	queue := make(chan *job, len(s.jobs))
	for _, j := range s.jobs {
		queue <- j
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(testbeds, len(s.jobs)) {
		wg.Go(func() {
			if err := work(ctx, s.d, queue); err != nil {
				t.Errorf("remove lab: %v", err)
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// work plays on one testbed until the queue is empty.
func work(ctx context.Context, d Dataplane, queue <-chan *job) error {
	b, err := newTestbed(ctx, d)
	for j := range queue {
		if err != nil {
			j.failures = []Failure{{Group: j.id, How: "make lab", Got: err.Error()}}
		} else {
			j.failures = j.play(ctx, b)
		}
		close(j.done)
	}
	if err != nil {
		return nil // every job has said so
	}
	return b.close()
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
func report(t *testing.T, mode string, cases []string, failures []Failure) {
	t.Helper()
	byCase := map[string][]Failure{}
	for _, f := range failures {
		byCase[f.Case] = append(byCase[f.Case], f)
	}
	for _, f := range byCase[""] {
		t.Errorf("%v", f)
	}
	for _, id := range cases {
		t.Run(id, func(t *testing.T) {
			for _, f := range byCase[id] {
				if f.Skip {
					t.Skip(f.Got)
				}
				t.Errorf("%v", f)
			}
			if t.Failed() && mode != "" {
				t.Logf("replay: go test ./internal/dataplane/%s -run '%s'", mode, t.Name())
			}
		})
	}
}
