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
	// maxDelay is how long after a change requests may still reach removed endpoints, or not yet
	// reach new ones.
	maxDelay = 2 * time.Second
	// goneAfter is how many consecutive requests must miss an endpoint before it counts as gone.
	// With three endpoints, 60 misses happen by chance once in 10^10 tries.
	goneAfter = 60
	// minSample is how many requests a Service gets before every endpoint must have been reached.
	minSample = 100
)

// stats counts requests. Clients record results while steps change the expectations.
type stats struct {
	mu       sync.Mutex
	began    time.Time
	services []*service
	errs     []error
}

// service counts the requests to one Service.
type service struct {
	target
	requests, refused, sampled int // sampled counts since restart
	seen                       map[netip.AddrPort]*endpoint
	changed                    time.Time // when the manifests changed
	graceEnd                   time.Time // requests sent until then may reach a removed endpoint
	streak                     int       // consecutive requests that did not reach a removed endpoint
}

// endpoint is an endpoint that is or was expected, or has answered.
type endpoint struct {
	wanted, wantedBefore bool      // expected since the last change, and before it
	total, sample        int       // answers in total, and since restart
	first                time.Time // when it first answered after the change
	last                 time.Time // when the last request that it answered was sent
}

func newStats(targets []target) *stats {
	st := &stats{began: time.Now()}
	for _, t := range targets {
		s := &service{seen: map[netip.AddrPort]*endpoint{}}
		s.change(t, st.began)
		s.change(t, st.began) // so that no endpoint counts as new
		st.services = append(st.services, s)
	}
	return st
}

// each calls f for every Service, with the lock held, and reports whether all calls returned true.
func (st *stats) each(f func(*service) bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := true
	for _, s := range st.services {
		all = f(s) && all
	}
	return all
}

// record counts finished requests.
func (st *stats) record(all []request) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, r := range all {
		i := slices.IndexFunc(st.services, func(s *service) bool { return s.name == r.service })
		if err := st.services[i].record(r); err != nil {
			st.errs = append(st.errs, fmt.Errorf("%s from %v: %v, %w", r.service, r.client, r.seen, err))
		}
	}
}

// change sets new expectations.
func (st *stats) change(targets []target, at time.Time) {
	st.each(func(s *service) bool {
		s.change(targets[slices.IndexFunc(targets, func(t target) bool { return t.name == s.name })], at)
		return true
	})
}

// checkSamples reports expected endpoints that no request of the sample reached.
func (st *stats) checkSamples() {
	st.each(func(s *service) bool {
		for a, e := range s.seen {
			if e.wanted && e.sample == 0 {
				st.errs = append(st.errs, fmt.Errorf("%s: none of %d requests reached %v", s.name, s.sampled, a))
			}
		}
		return true
	})
}

// err returns an error with the number of wrong results and the first eight of them.
func (st *stats) err() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.errs); n > 0 {
		return fmt.Errorf("%d wrong results:\n%w", n, errors.Join(st.errs[:min(n, 8)]...))
	}
	return nil
}

// delays describes how long the last change took, by address, for the slowest Service.
func (st *stats) delays() string {
	took := map[string]time.Duration{}
	st.each(func(s *service) bool {
		for a, e := range s.seen {
			what := map[bool]string{true: "first to ", false: "last request to "}[e.wanted] + a.Addr().String()
			if e.wanted != e.wantedBefore {
				took[what] = max(took[what], s.delayOf(e))
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

// delay formats a duration for display.
func delay(d time.Duration) string {
	if d <= 0 {
		return " at once"
	}
	return " after " + d.Round(100*time.Microsecond).String()
}

// delayOf returns how long after the change a new endpoint first answered, or a removed one was
// last sent a request.
func (s *service) delayOf(e *endpoint) time.Duration {
	if e.wanted {
		return e.first.Sub(s.changed)
	}
	return max(0, e.last.Sub(s.changed))
}

func (s *service) change(to target, at time.Time) {
	for _, a := range to.endpoints {
		s.seen[a] = cmp.Or(s.seen[a], &endpoint{})
	}
	for a, e := range s.seen {
		e.wantedBefore, e.wanted = e.wanted, slices.Contains(to.endpoints, a)
		e.first, e.last = time.Time{}, time.Time{}
	}
	s.target, s.changed, s.graceEnd, s.streak = to, at, at.Add(maxDelay), 0
}

// settled reports whether requests follow the last change: new endpoints have answered, and removed
// ones answer no more.
func (s *service) settled() bool {
	for _, e := range s.seen {
		if e.wantedBefore && !e.wanted && s.streak < goneAfter || e.wanted && !e.wantedBefore && e.first.IsZero() {
			return false
		}
	}
	return true
}

// restart starts a new sample. From now on only expected endpoints may answer.
func (s *service) restart(now time.Time) {
	s.graceEnd = slices.MinFunc([]time.Time{now, s.graceEnd}, time.Time.Compare)
	for _, e := range s.seen {
		e.sample = 0
	}
	s.sampled = 0
}

// record counts a request, and returns an error if its result is wrong.
func (s *service) record(r request) error {
	s.requests++
	s.sampled++
	want := s.want[r.client]
	switch {
	case want.Verdict == proxy.Reject && r.seen.Fate == traffic.Refused:
		s.refused++
		return nil
	case want.Verdict == proxy.Reject:
		// A reset would come from behind the node: the request was not rejected by it.
		return errors.New("it should be refused")
	case r.seen.Fate != traffic.Answered:
		return errors.New("it should be answered")
	}
	e := cmp.Or(s.seen[r.seen.By], &endpoint{})
	s.seen[r.seen.By] = e
	e.total++
	e.sample++
	s.streak++
	came := e.wanted && !e.wantedBefore && e.first.IsZero()
	if e.first.IsZero() {
		e.first = r.done
	}
	e.last = slices.MaxFunc([]time.Time{e.last, r.sent}, time.Time.Compare)
	i := slices.IndexFunc(want.Backends, func(b proxy.Backend) bool { return b.Addr == r.seen.By })
	switch {
	case i < 0 && !e.wantedBefore:
		return errors.New("which is not an endpoint")
	case i < 0:
		s.streak = 0
		if r.sent.After(s.graceEnd) {
			return errors.New("taken away" + delay(s.delayOf(e)))
		}
	case !want.Backends[i].Masquerade && r.seen.Client != r.client:
		return errors.New("it should see the client's own address")
	case came && s.delayOf(e) > maxDelay:
		return errors.New("for the first time" + delay(s.delayOf(e)))
	}
	return nil
}
