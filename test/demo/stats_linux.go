package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

const (
	// bound is how long after a change requests may go where they went before, or miss what is new.
	bound = 2 * time.Second
	// calm is how many requests in a row must miss an endpoint before it is taken for gone:
	// with three of them 60 misses happen by chance once in ten thousand million tries.
	calm = 60
	// enough is how many requests a Service gets before "every endpoint was reached" is asked.
	enough = 100
)

// stats counts requests. Clients add to it while the play changes what is right.
type stats struct {
	mu       sync.Mutex
	began    time.Time
	services []*service
	faults   []error
}

// service is what became of the requests to one Service.
type service struct {
	target
	requests, refused, sampled int // sampled: since the last change settled
	seen                       map[netip.AddrPort]*endpoint
	changed                    time.Time // when the manifests changed
	until                      time.Time // a leaving endpoint may be reached by what was sent before
	streak                     int       // requests since the change that did not reach a leaving endpoint
}

// endpoint is one that is or was right, or has answered.
type endpoint struct {
	is, was       bool      // right since the change, and before it
	total, sample int       // answers, and those since the last change settled
	first         time.Time // when the first request since the change was answered
	last          time.Time // when the last request since the change was sent
}

func newStats(targets []target) *stats {
	st := &stats{began: time.Now()}
	for _, t := range targets {
		s := &service{seen: map[netip.AddrPort]*endpoint{}}
		s.change(t, st.began)
		s.change(t, st.began) // nothing is new
		st.services = append(st.services, s)
	}
	return st
}

// each calls f for every Service and reports whether it was true for all.
func (st *stats) each(f func(*service) bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := true
	for _, s := range st.services {
		all = f(s) && all
	}
	return all
}

// take counts finished requests.
func (st *stats) take(all []request) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, r := range all {
		i := slices.IndexFunc(st.services, func(s *service) bool { return s.name == r.service })
		if err := st.services[i].take(r); err != nil {
			st.faults = append(st.faults, fmt.Errorf("%s from %v: %v, %w", r.service, r.client, r.seen, err))
		}
	}
}

// change sets what is right from a moment on.
func (st *stats) change(targets []target, at time.Time) {
	st.each(func(s *service) bool {
		s.change(targets[slices.IndexFunc(targets, func(t target) bool { return t.name == s.name })], at)
		return true
	})
}

// inspect looks at the samples and counts what is missing as faults.
func (st *stats) inspect() {
	st.each(func(s *service) bool {
		for a, e := range s.seen {
			if e.is && e.sample == 0 {
				st.faults = append(st.faults, fmt.Errorf("%s: none of %d requests reached %v", s.name, s.sampled, a))
			}
		}
		return true
	})
}

// verdict returns what went wrong as one error.
func (st *stats) verdict() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.faults); n > 0 {
		return fmt.Errorf("%d times something did not go where it should:\n%w", n, errors.Join(st.faults[:min(n, 8)]...))
	}
	return nil
}

// delays says what the last change took, by address, for the slowest Service.
func (st *stats) delays() string {
	took := map[string]time.Duration{}
	st.each(func(s *service) bool {
		for a, e := range s.seen {
			what := map[bool]string{true: "first to ", false: "last request to "}[e.is] + a.Addr().String()
			if e.is != e.was {
				took[what] = max(took[what], s.after(e))
			}
		}
		return true
	})
	var out []string
	for _, what := range slices.Sorted(maps.Keys(took)) {
		out = append(out, what+delay(took[what]))
	}
	return strings.Join(out, ", ")
}

// delay says how long something took, with no more digits than a viewer likes.
func delay(d time.Duration) string {
	if d <= 0 {
		return " at once"
	}
	return " after " + d.Round(100*time.Microsecond).String()
}

// after returns when the last request was sent to an endpoint that left, or one answered that came.
func (s *service) after(e *endpoint) time.Duration {
	if e.is {
		return e.first.Sub(s.changed)
	}
	return max(0, e.last.Sub(s.changed))
}

func (s *service) change(to target, at time.Time) {
	for _, a := range to.endpoints {
		s.seen[a] = cmp.Or(s.seen[a], &endpoint{})
	}
	for a, e := range s.seen {
		e.was, e.is = e.is, slices.Contains(to.endpoints, a)
		e.first, e.last = time.Time{}, time.Time{}
	}
	s.target, s.changed, s.until, s.streak = to, at, at.Add(bound), 0
}

// settled reports whether requests follow the last change.
func (s *service) settled() bool {
	for _, e := range s.seen {
		if e.was && !e.is && s.streak < calm || e.is && !e.was && e.first.IsZero() {
			return false
		}
	}
	return true
}

// restart begins a new sample. From now on only what the manifests say is right.
func (s *service) restart(now time.Time) {
	s.until = slices.MinFunc([]time.Time{now, s.until}, time.Time.Compare)
	for _, e := range s.seen {
		e.sample = 0
	}
	s.sampled = 0
}

// take counts a request. It returns what should have become of it instead.
func (s *service) take(r request) error {
	s.requests++
	s.sampled++
	want := s.want[r.client]
	switch {
	case want.Verdict == proxy.Reject && r.seen.Fate == traffic.Refused:
		s.refused++
		return nil
	case want.Verdict == proxy.Reject:
		// A reset would come from behind the node: the request was not stopped.
		return errors.New("it should be refused")
	case r.seen.Fate != traffic.Answered:
		return errors.New("it should be answered")
	}
	e := cmp.Or(s.seen[r.seen.By], &endpoint{})
	s.seen[r.seen.By] = e
	e.total++
	e.sample++
	s.streak++
	came := e.is && !e.was && e.first.IsZero()
	if e.first.IsZero() {
		e.first = r.done
	}
	e.last = slices.MaxFunc([]time.Time{e.last, r.sent}, time.Time.Compare)
	i := slices.IndexFunc(want.Backends, func(b proxy.Backend) bool { return b.Addr == r.seen.By })
	switch {
	case i < 0 && !e.was:
		return errors.New("which is not an endpoint")
	case i < 0:
		s.streak = 0
		if r.sent.After(s.until) {
			return errors.New("taken away" + delay(s.after(e)))
		}
	case !want.Backends[i].Masquerade && r.seen.Client != r.client:
		return errors.New("it should see the client's own address")
	case came && s.after(e) > bound:
		return errors.New("for the first time" + delay(s.after(e)))
	}
	return nil
}
