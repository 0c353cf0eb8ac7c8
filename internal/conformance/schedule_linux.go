package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"sluice/internal/conformance/traffic"
)

// testbeds is how many labs run concurrently. A lab mostly waits for silence, so there are more
// than processors.
const testbeds = 4

// job is a group or story to run on a testbed.
type job struct {
	run  func(context.Context, *testbed) []failure
	done chan []failure
}

// scheduler distributes jobs over testbeds. The testing package runs no more subtests at once than
// there are processors, so the subtests only wait and report; the scheduler's own goroutines run
// the jobs.
type scheduler struct {
	d        Dataplane
	bridged  bool             // the pods of a node share a bridge
	cgroups  *traffic.Cgroups // nil unless the dataplane acts on sockets
	counters counters
	jobs     []job
}

// add adds a job and the subtest that reports it. A subtest excluded by -run adds no job.
func (s *scheduler) add(t *testing.T, id string, cases []*Case, run func(context.Context, *testbed) []failure) {
	t.Run(id, func(t *testing.T) {
		j := job{run, make(chan []failure, 1)}
		s.jobs = append(s.jobs, j)
		t.Parallel()
		report(t, cases, <-j.done)
	})
}

// start runs all jobs in the background; the subtests wait for their results.
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
