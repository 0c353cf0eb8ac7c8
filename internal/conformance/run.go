package conformance

import (
	"context"
	"sync"
	"testing"

	"sluice/internal/conformance/lab"
)

// stages is how many labs are used at once. Most of a lab's time is waiting
// for silence, so there are more than processors.
const stages = 4

// Run plays the whole table against a dataplane. Every case is a subtest
// named group/case.
func Run(t *testing.T, d Dataplane) {
	lab.Require(t)
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	c := &company{d: d}
	// What waits longest goes first.
	for _, s := range all.Stateful {
		c.enroll(t, &performer{id: s.ID, play: func(ctx context.Context, st *stage) []Failure {
			return st.tell(ctx, s)
		}})
	}
	for _, g := range all.Groups {
		if cases := g.names(d.Mode); len(cases) > 0 {
			c.enroll(t, &performer{id: g.ID, cases: cases, play: func(ctx context.Context, st *stage) []Failure {
				return append(g.oracle(), st.perform(ctx, g)...)
			}})
		}
	}
	c.start(t)
}

// RunOracle checks the table against the oracle alone.
func RunOracle(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		t.Run(g.ID, func(t *testing.T) {
			report(t, Dataplane{}, &performer{id: g.ID, cases: g.names(oracleMode), failures: g.oracle()})
		})
	}
}

// names returns the names of the cases that apply to a mode.
func (g *Group) names(mode string) []string {
	var out []string
	for _, c := range g.Cases {
		if c.plays(mode) {
			out = append(out, c.ID)
		}
	}
	return out
}

// performer is something that plays on a stage.
type performer struct {
	id       string
	cases    []string
	play     func(context.Context, *stage) []Failure
	done     chan struct{}
	failures []Failure // once done is closed
}

// company shares the stages among the performers. The testing package runs no
// more subtests at once than there are processors, so the subtests only wait
// and report; the playing is done by goroutines of our own.
type company struct {
	d          Dataplane
	performers []*performer
}

// enroll makes the performer a subtest, which takes part unless it was not
// asked for.
func (c *company) enroll(t *testing.T, p *performer) {
	t.Helper()
	t.Run(p.id, func(t *testing.T) {
		p.done = make(chan struct{})
		c.performers = append(c.performers, p)
		t.Parallel()
		<-p.done
		report(t, c.d, p)
	})
}

// start plays everything that is enrolled. The subtests wait for it.
func (c *company) start(t *testing.T) {
	ctx := t.Context()
	queue := make(chan *performer, len(c.performers))
	for _, p := range c.performers {
		queue <- p
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(stages, len(c.performers)) {
		wg.Go(func() {
			if err := work(ctx, c.d, queue); err != nil {
				t.Errorf("remove lab: %v", err)
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// work plays on one stage until the queue is empty.
func work(ctx context.Context, d Dataplane, queue <-chan *performer) error {
	st, err := newStage(ctx, d)
	for p := range queue {
		if err != nil {
			p.failures = []Failure{{Group: p.id, How: "make lab", Got: err.Error()}}
		} else {
			p.failures = p.play(ctx, st)
		}
		close(p.done)
	}
	if err != nil {
		return nil // every performer has said so
	}
	return st.close()
}

// report makes a performer's failures those of the test and its cases.
func report(t *testing.T, d Dataplane, p *performer) {
	t.Helper()
	byCase := map[string][]Failure{}
	for _, f := range p.failures {
		byCase[f.Case] = append(byCase[f.Case], f)
	}
	for _, f := range byCase[""] {
		t.Errorf("%v", f)
	}
	for _, id := range p.cases {
		t.Run(id, func(t *testing.T) {
			for _, f := range byCase[id] {
				if f.Skip {
					t.Skip(f.Got)
				}
				t.Errorf("%v", f)
			}
			if t.Failed() && d.Mode != "" {
				t.Logf("replay: go test ./internal/dataplane/%s -run '%s'", d.Mode, t.Name())
			}
		})
	}
}
