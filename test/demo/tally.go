//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// recently is how far back bars and rates look.
	recently = 1500 * time.Millisecond
	// maxFaults is how many faults are told one by one.
	maxFaults = 8
)

// tally counts requests. Clients add to it while the story changes what is
// right and the display reads it.
type tally struct {
	mu     sync.Mutex
	scores []*score // one per Service, in the catalog's order
	recent []hit    // those of the last moments, oldest first
	failed int
	faults []error // the first ones
}

func newTally(c catalog) *tally {
	t := &tally{}
	for _, s := range c.services {
		t.scores = append(t.scores, newScore(s))
	}
	return t
}

// take counts finished requests.
func (t *tally) take(hits []hit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range hits {
		if err := t.of(h.service).take(h); err != nil {
			t.failed++
			t.fault(err)
		}
	}
	t.recent = append(t.recent, hits...)
	oldest := time.Now().Add(-recently)
	i := slices.IndexFunc(t.recent, func(h hit) bool { return h.done.After(oldest) })
	t.recent = t.recent[max(i, 0):]
}

// of returns the score of a Service.
func (t *tally) of(name string) *score {
	i := slices.IndexFunc(t.scores, func(s *score) bool { return s.name == name })
	return t.scores[i]
}

// fault keeps the first things that went wrong.
func (t *tally) fault(err error) {
	if len(t.faults) < maxFaults {
		t.faults = append(t.faults, err)
	}
}

// change sets what is right from now on, and returns the moment.
func (t *tally) change(c catalog) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, s := range c.services {
		t.of(s.name).change(s, now)
	}
	return now
}

// settled reports whether requests follow the last change everywhere.
func (t *tally) settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(t.scores, func(s *score) bool { return !s.settled() })
}

// restart begins a new sample for every Service.
func (t *tally) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.scores {
		s.restart(time.Now())
	}
}

// sampled reports whether every Service had enough requests since restart.
func (t *tally) sampled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(t.scores, func(s *score) bool { return s.sampled < enough })
}

// inspect looks at the samples and counts what is missing as faults.
func (t *tally) inspect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.scores {
		for _, err := range s.missing() {
			t.fault(err)
		}
	}
}

// delays are the slowest Service's, by what happened to an address.
type delays struct {
	gone map[netip.Addr]time.Duration // until the last request was sent there
	come map[netip.Addr]time.Duration // until the first request arrived there
}

// delays returns how long the last change took.
func (t *tally) delays() delays {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := delays{map[netip.Addr]time.Duration{}, map[netip.Addr]time.Duration{}}
	for _, s := range t.scores {
		for e, m := range s.moves {
			of := d.come
			if m.leaves {
				of = d.gone
			}
			of[e.Addr()] = max(of[e.Addr()], m.after)
		}
	}
	return d
}

// faulty reports whether anything went wrong.
func (t *tally) faulty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.faults) > 0
}

// verdict returns everything that went wrong as one error.
func (t *tally) verdict() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.faults) == 0 {
		return nil
	}
	text := "not everything went where it should:"
	for _, f := range t.faults {
		text += "\n  " + f.Error()
	}
	if t.failed > len(t.faults) {
		text += fmt.Sprintf("\n  %s wrong requests in all", thousands(t.failed))
	}
	return errors.New(text)
}
