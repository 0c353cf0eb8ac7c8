//go:build linux

package main

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// play runs steps that take a number of seconds each, and returns when each began and ended.
func play(ctx context.Context, t *testing.T, cores float64, seconds map[string]int, failing string, steps ...step) (times map[string][2]int) {
	t.Helper()
	begin := time.Now()
	now := func() int { return int(time.Since(begin).Seconds()) }
	times = map[string][2]int{}
	s := schedule{
		cores:   cores,
		started: func(s step) { times[s.name] = [2]int{now(), -1} },
		ended: func(r *result) {
			if r.broken == "" || r.step.name == failing {
				times[r.step.name] = [2]int{times[r.step.name][0], now()}
			}
		},
		run: func(_ context.Context, s step) *result {
			time.Sleep(time.Duration(seconds[s.name]) * time.Second)
			r := &result{step: s}
			if s.name == failing {
				r.broken = "exit status 1"
			}
			return r
		},
	}
	if results := s.runAll(ctx, steps); len(results) != len(steps) {
		t.Errorf("%d results of %d steps", len(results), len(steps))
	}
	return times
}

func TestSchedule(t *testing.T) {
	seconds := map[string]int{"build": 1, "two": 10, "one": 10, "other": 10, "waits": 30, "timed": 5}
	build := step{name: "build", cores: 2}
	two := step{name: "two", cores: 2, after: []string{"build"}}
	one, other := step{name: "one", cores: 1}, step{name: "other", cores: 1}
	waits := step{name: "waits", cores: 0.2}
	timed := step{name: "timed", cores: 0.8, alone: true}
	for _, c := range []struct {
		name    string
		steps   []step
		failing string
		want    map[string][2]int
	}{
		{"as many as there are processors", []step{build, one, other}, "", map[string][2]int{"build": {0, 1}, "one": {1, 11}, "other": {1, 11}}},
		{"a small one overtakes", []step{one, two, other}, "", map[string][2]int{"one": {0, 10}, "other": {0, 10}, "two": {10, 20}}},
		{"beside one that waits", []step{waits, two}, "", map[string][2]int{"waits": {0, 30}, "two": {0, 10}}},
		{"what it needs comes first", []step{two, waits, build}, "", map[string][2]int{"waits": {0, 30}, "build": {0, 1}, "two": {1, 11}}},
		{"what it needs is not chosen", []step{two}, "", map[string][2]int{"two": {0, 10}}},
		{"what it needs fails", []step{build, two, one}, "build", map[string][2]int{"build": {0, 1}, "one": {1, 11}}},
		{"alone beside one that waits", []step{timed, waits, one}, "", map[string][2]int{"timed": {0, 5}, "waits": {0, 30}, "one": {5, 15}}},
		{"alone later", []step{one, timed}, "", map[string][2]int{"one": {0, 10}, "timed": {10, 15}}},
		{"more than there is", []step{{name: "two", cores: 8}, one}, "", map[string][2]int{"two": {0, 10}, "one": {10, 20}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := play(t.Context(), t, 2.3, seconds, c.failing, c.steps...)
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("begin and end mismatch (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestInterrupted wants nothing new to be started.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		one, next := step{name: "one", cores: 2}, step{name: "next", cores: 2}
		got := play(ctx, t, 2, map[string]int{"one": 10}, "", one, next)
		if diff := cmp.Diff(map[string][2]int{"one": {0, 10}}, got); diff != "" {
			t.Errorf("begin and end mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestTables checks that the tables can be run: each name is there once, and what a step needs comes before it.
func TestTables(t *testing.T) {
	for name, set := range sets {
		var names []string
		for _, s := range set {
			if slices.Contains(names, s.name) {
				t.Errorf("%s has %s twice", name, s.name)
			}
			for _, needed := range s.after {
				if !slices.Contains(names, needed) {
					t.Errorf("%s: %s needs %s, which does not come before it", name, s.name, needed)
				}
			}
			names = append(names, s.name)
		}
	}
}
