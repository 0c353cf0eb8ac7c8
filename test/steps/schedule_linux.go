package main

import (
	"context"
	"slices"
)

// step is a target of the Makefile.
type step struct {
	name  string
	make  []string // the target, and variables
	cores float64  // how many processors it keeps busy on average: its CPU seconds by its seconds
	after []string // the steps whose results it uses, if they are to run too
	alone bool     // its tests measure time: only steps that wait may run beside it
	plain bool     // it runs no go test
}

// waits reports whether a step leaves the processors to others most of the time.
func (s step) waits() bool { return s.cores <= 0.5 }

// schedule runs steps beside each other as far as there are processors.
type schedule struct {
	cores   float64 // the limit
	run     func(context.Context, step) *result
	started func(step)
	ended   func(*result)
}

// runAll runs steps and returns their results in the order in which they ended. A step is not
// started if one failed whose results it uses, or once ctx is done.
func (s schedule) runAll(ctx context.Context, waiting []step) (results []*result) {
	var running []step
	waiting = slices.Clone(waiting)
	end := func(r *result) {
		results = append(results, r)
		s.ended(r)
	}
	done := make(chan *result)
	for len(waiting)+len(running) > 0 {
		waiting = slices.DeleteFunc(waiting, func(w step) bool {
			lacks := lacking(w, results)
			if ctx.Err() != nil {
				lacks = "interrupted"
			}
			if lacks != "" {
				end(&result{step: w, broken: "not run: " + lacks})
			}
			return lacks != ""
		})
		for i := s.next(waiting, running); i >= 0; i = s.next(waiting, running) {
			next := waiting[i]
			waiting, running = slices.Delete(waiting, i, i+1), append(running, next)
			s.started(next)
			go func() { done <- s.run(ctx, next) }()
		}
		if len(running) == 0 {
			continue
		}
		r := <-done
		running = slices.DeleteFunc(running, func(o step) bool { return o.name == r.step.name })
		end(r)
	}
	return results
}

// lacking says which step has failed whose results a step uses.
func lacking(s step, results []*result) string {
	for _, r := range results {
		if slices.Contains(s.after, r.step.name) && r.failed() {
			return r.step.name + " failed"
		}
	}
	return ""
}

// next returns the index of the first waiting step that may run beside those that are running, or
// -1. Without a running step, the first one whose predecessors have ended always may.
func (s schedule) next(waiting, running []step) int {
	busy, alone := 0.0, false
	for _, r := range running {
		busy += r.cores
		alone = alone || r.alone
	}
	return slices.IndexFunc(waiting, func(w step) bool {
		unfinished := func(o step) bool { return slices.Contains(w.after, o.name) }
		computes := func(o step) bool { return !o.waits() }
		switch {
		case slices.ContainsFunc(waiting, unfinished) || slices.ContainsFunc(running, unfinished):
			return false
		case len(running) == 0:
			return true
		case alone && computes(w), w.alone && slices.ContainsFunc(running, computes):
			return false
		}
		return busy+w.cores <= s.cores
	})
}
