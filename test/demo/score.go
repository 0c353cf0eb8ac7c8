//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/conformance/traffic"
)

const (
	// bound is how long after a change requests may still go where they went
	// before, and may not yet have reached what is new.
	bound = 2 * time.Second
	// calm is how many requests in a row must miss an endpoint before it is
	// taken for gone: with three of them 60 misses happen by chance once in
	// ten thousand million tries.
	calm = 60
	// enough is how many requests a Service gets before "every endpoint was
	// reached" is asked.
	enough = 100
)

// score is what became of the requests to one Service.
type score struct {
	service
	requests int
	refused  int
	totals   map[netip.AddrPort]int // answers, by endpoint
	sample   map[netip.AddrPort]int // answers since the last change settled
	sampled  int                    // requests since then
	moves    map[netip.AddrPort]*move
	streak   int // requests since the change that did not reach a leaving endpoint
}

// move is an endpoint that comes or goes.
type move struct {
	leaves bool
	at     time.Time     // when the manifests changed
	until  time.Time     // a leaving endpoint may be reached by what was sent before
	after  time.Duration // until the last request was sent to it, or the first one reached it
	seen   bool          // a request has set after
}

func newScore(s service) *score {
	return &score{
		service: s, totals: map[netip.AddrPort]int{},
		sample: map[netip.AddrPort]int{}, moves: map[netip.AddrPort]*move{},
	}
}

// change sets what is right from a moment on.
func (s *score) change(to service, at time.Time) {
	moves := map[netip.AddrPort]*move{}
	for _, e := range s.endpoints {
		if !slices.Contains(to.endpoints, e) {
			moves[e] = &move{leaves: true, at: at, until: at.Add(bound)}
		}
	}
	for _, e := range to.endpoints {
		if !slices.Contains(s.endpoints, e) {
			moves[e] = &move{at: at}
		}
	}
	s.service, s.moves, s.streak = to, moves, 0
}

// settled reports whether requests follow the last change.
func (s *score) settled() bool {
	for _, m := range s.moves {
		if m.leaves && s.streak < calm || !m.leaves && !m.seen {
			return false
		}
	}
	return true
}

// restart begins a new sample. From now on only what the manifests say is right.
func (s *score) restart(now time.Time) {
	for _, m := range s.moves {
		if m.leaves && now.Before(m.until) {
			m.until = now
		}
	}
	s.sample, s.sampled = map[netip.AddrPort]int{}, 0
}

// take counts a request. It returns what was wrong with it.
func (s *score) take(h hit) error {
	s.requests++
	s.sampled++
	if len(s.endpoints) == 0 {
		// A reset would come from behind the node: the request was not stopped.
		if h.seen.Fate != traffic.Refused {
			return fmt.Errorf("%s from %v: %v, it should be refused", s.name, h.client, h.seen)
		}
		s.refused++
		return nil
	}
	if h.seen.Fate != traffic.Answered {
		return fmt.Errorf("%s from %v: %v, it should be answered", s.name, h.client, h.seen)
	}
	s.totals[h.seen.By]++
	s.sample[h.seen.By]++
	if s.local && h.seen.Client != h.client {
		return fmt.Errorf("%s from %v: %v, it should see the client's own address", s.name, h.client, h.seen)
	}
	return s.arrive(h)
}

// arrive judges where an answered request went.
func (s *score) arrive(h hit) error {
	m := s.moves[h.seen.By]
	s.streak++
	switch {
	case m == nil && !slices.Contains(s.endpoints, h.seen.By):
		return fmt.Errorf("%s from %v: %v, which is not an endpoint", s.name, h.client, h.seen)
	case m == nil:
		return nil
	case m.leaves:
		s.streak = 0
		if after := h.sent.Sub(m.at); after > m.after {
			m.after, m.seen = after, true
		}
		if h.sent.After(m.until) {
			return fmt.Errorf("%s from %v: %v, %v after it was taken away", s.name, h.client, h.seen, brief(h.sent.Sub(m.at)))
		}
	case !m.seen:
		m.after, m.seen = h.done.Sub(m.at), true
		if m.after > bound {
			return fmt.Errorf("%s: the first request reached %v %v after it was added", s.name, h.seen.By, brief(m.after))
		}
	}
	return nil
}

// missing says what a full sample should have and has not.
func (s *score) missing() []error {
	var out []error
	if s.sampled == 0 {
		out = append(out, fmt.Errorf("%s: no request was finished", s.name))
	}
	for _, e := range s.endpoints {
		if s.sampled > 0 && s.sample[e] == 0 {
			out = append(out, fmt.Errorf("%s: none of %d requests reached %v", s.name, s.sampled, e))
		}
	}
	return out
}

// known returns every endpoint that is right, is moving or has answered, sorted.
func (s *score) known() []netip.AddrPort {
	out := slices.Clone(s.endpoints)
	for e := range s.totals {
		out = append(out, e)
	}
	for e := range s.moves {
		out = append(out, e)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// brief returns a duration as a viewer likes to read it.
func brief(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
