package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
)

var (
	podA   = netip.MustParseAddrPort("10.244.0.11:8080")
	podB   = netip.MustParseAddrPort("10.244.0.12:8080")
	podC   = netip.MustParseAddrPort("10.244.1.14:8080")
	caller = netip.MustParseAddr("203.0.113.9")
	start  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// answered is a request that began some time after the start.
func answered(by netip.AddrPort, after time.Duration) hit {
	return hit{
		service: "web", client: caller, sent: start.Add(after), done: start.Add(after + time.Millisecond),
		seen: traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: by, Client: netip.MustParseAddr("192.168.0.2")}},
	}
}

func fated(f traffic.Fate) hit {
	return hit{service: "web", client: caller, sent: start, done: start, seen: traffic.Seen{Fate: f, Err: errors.New("reason")}}
}

func web(endpoints ...netip.AddrPort) service { return service{name: "web", endpoints: endpoints} }

// TestTake judges single requests. B was taken away at the start and C added.
func TestTake(t *testing.T) {
	moving := func() *score {
		s := newScore(web(podA, podB))
		s.change(web(podA, podC), start)
		return s
	}
	settled := func() *score {
		s := moving()
		s.restart(start.Add(time.Second))
		return s
	}
	local := func() *score { return newScore(service{name: "web", local: true, endpoints: []netip.AddrPort{podA}}) }
	kept := answered(podA, 0)
	kept.seen.Client = caller
	tests := []struct {
		name  string
		score *score
		hit   hit
		want  string // part of the fault; empty: right
	}{
		{"an endpoint", newScore(web(podA, podB)), answered(podB, 0), ""},
		{"another Service's endpoint", newScore(web(podA, podB)), answered(podC, 0), "which is not an endpoint"},
		{"silence", newScore(web(podA)), fated(traffic.Silent), "silence, it should be answered"},
		{"refused", newScore(web(podA)), fated(traffic.Refused), "refused, it should be answered"},
		{"broken", newScore(web(podA)), fated(traffic.Broken), "reason, it should be answered"},
		{"no endpoints, refused", newScore(web()), fated(traffic.Refused), ""},
		{"no endpoints, passed on", newScore(web()), fated(traffic.Reset), "reset, it should be refused"},
		{"no endpoints, silence", newScore(web()), fated(traffic.Silent), "silence, it should be refused"},
		{"no endpoints, answered", newScore(web()), answered(podA, 0), "it should be refused"},
		{"client kept", local(), kept, ""},
		{"client lost", local(), answered(podA, 0), "the client's own address"},
		{"sent before it was taken away", moving(), answered(podB, -time.Millisecond), ""},
		{"soon after it was taken away", moving(), answered(podB, 50*time.Millisecond), ""},
		{"at the bound", moving(), answered(podB, bound), ""},
		{"past the bound", moving(), answered(podB, bound+time.Millisecond), "2.0 s after it was taken away"},
		{"sent before it settled", settled(), answered(podB, time.Second), ""},
		{"after it settled", settled(), answered(podB, time.Second+time.Millisecond), "1.0 s after it was taken away"},
		{"soon after it was added", moving(), answered(podC, 50*time.Millisecond), ""},
		{"long after it was added", moving(), answered(podC, bound), "2.0 s after it was added"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.score.take(tt.hit)
			switch {
			case err == nil && tt.want != "":
				t.Errorf("no fault, want %q", tt.want)
			case err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("fault %q, want %q", err, tt.want)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	s := newScore(web(podA, podB))
	if !s.settled() {
		t.Error("not settled though nothing moves")
	}
	s.change(web(podA, podC), start)
	take := func(h hit) {
		t.Helper()
		if err := s.take(h); err != nil {
			t.Fatal(err)
		}
	}
	take(answered(podB, 7*time.Millisecond))
	for range calm {
		take(answered(podA, 20*time.Millisecond))
	}
	if s.settled() {
		t.Error("settled before the new endpoint was reached")
	}
	take(answered(podC, 29*time.Millisecond))
	if !s.settled() {
		t.Error("not settled")
	}
	take(answered(podB, 40*time.Millisecond))
	take(answered(podC, 50*time.Millisecond))
	if s.settled() {
		t.Error("settled though the leaving endpoint is still reached")
	}
	if got := s.moves[podB].after; got != 40*time.Millisecond {
		t.Errorf("the last request to B began %v after, want 40ms", got)
	}
	if got := s.moves[podC].after; got != 30*time.Millisecond {
		t.Errorf("the first request reached C %v after, want 30ms", got)
	}
}

// TestVerdict wants a sample in which an endpoint is missing to be a fault, and
// the first wrong request to be one for good.
func TestVerdict(t *testing.T) {
	c := catalog{services: []service{web(podA, podB)}}
	fill := func(t *tally, by ...netip.AddrPort) {
		for range enough {
			for _, b := range by {
				t.take([]hit{answered(b, 0)})
			}
		}
	}
	good := newTally(c)
	if good.sampled() {
		t.Error("sampled before any request")
	}
	fill(good, podA, podB)
	good.inspect()
	if err := good.verdict(); err != nil || good.faulty() || !good.sampled() {
		t.Errorf("verdict %v, sampled %t", err, good.sampled())
	}
	missing := newTally(c)
	fill(missing, podA)
	missing.inspect()
	if err := missing.verdict(); err == nil || !strings.Contains(err.Error(), "none of 100 requests reached 10.244.0.12:8080") {
		t.Errorf("verdict without an endpoint's requests: %v", err)
	}
	empty := newTally(c)
	empty.inspect()
	if err := empty.verdict(); err == nil || !strings.Contains(err.Error(), "no request was finished") {
		t.Errorf("verdict without requests: %v", err)
	}
	wrong := newTally(c)
	fill(wrong, podC)
	wrong.restart()
	fill(wrong, podA, podB)
	wrong.inspect()
	if err := wrong.verdict(); err == nil || !wrong.faulty() || !strings.Contains(err.Error(), "100 wrong requests in all") {
		t.Errorf("verdict with a stranger's answers: %v", err)
	}
}

func TestDelays(t *testing.T) {
	ta := newTally(catalog{services: []service{web(podA, podB), {name: "shop", endpoints: []netip.AddrPort{podA, podB}}}})
	for _, s := range ta.scores {
		s.change(service{name: s.name, endpoints: []netip.AddrPort{podA, podC}}, start)
	}
	late := answered(podC, 50*time.Millisecond)
	late.service = "shop"
	ta.take([]hit{answered(podB, 8*time.Millisecond), answered(podC, 9*time.Millisecond), late})
	got := strings.Join(ta.delays().words(), ", ")
	if want := "last request to 10.244.0.12 after 8.0 ms, first to 10.244.1.14 after 51 ms"; got != want {
		t.Errorf("delays are %q, want %q", got, want)
	}
}

func TestFailure(t *testing.T) {
	wrong := errors.New("wrong")
	if err := failure(nil, nil); err != nil {
		t.Errorf("no failures give %v", err)
	}
	if err := failure(nil, errInterrupted); err != errInterrupted {
		t.Errorf("an interruption gives %v", err)
	}
	if err := failure(errInterrupted, wrong); !errors.Is(err, wrong) || errors.Is(err, errInterrupted) {
		t.Errorf("an interruption and a failure give %v", err)
	}
}
