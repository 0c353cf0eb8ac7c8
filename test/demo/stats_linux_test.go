package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

var (
	podA   = netip.MustParseAddrPort("10.244.0.11:8080")
	podB   = netip.MustParseAddrPort("10.244.0.12:8080")
	podC   = netip.MustParseAddrPort("10.244.1.14:8080")
	caller = netip.MustParseAddr("203.0.113.9")
	start  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// answered is a request that began some time after the start.
func answered(by netip.AddrPort, after time.Duration) request {
	return request{
		service: "web", client: caller, sent: start.Add(after), done: start.Add(after + time.Millisecond),
		seen: traffic.Seen{Fate: traffic.Answered, Answer: traffic.Answer{By: by, Client: netip.MustParseAddr("192.168.0.2")}},
	}
}

func fated(f traffic.Fate) request {
	return request{service: "web", client: caller, sent: start, done: start, seen: traffic.Seen{Fate: f, Err: errors.New("reason")}}
}

// to is a Service that is masqueraded to endpoints, or refused without any.
func to(name string, endpoints ...netip.AddrPort) target {
	o := proxy.Outcome{Verdict: proxy.Reject}
	for _, e := range endpoints {
		o.Verdict = proxy.Forward
		o.Backends = append(o.Backends, proxy.Backend{Endpoint: proxy.Endpoint{Addr: e}, Masquerade: true})
	}
	return target{name: name, description: "ClusterIP", endpoints: endpoints, want: map[netip.Addr]proxy.Outcome{caller: o}}
}

func web(endpoints ...netip.AddrPort) target { return to("web", endpoints...) }

func newService(t target) *service { return newStats([]target{t}).services[0] }

// TestTake judges single requests. B was taken away at the start and C added.
func TestTake(t *testing.T) {
	moving := func() *service {
		s := newService(web(podA, podB))
		s.change(web(podA, podC), start)
		return s
	}
	settled := func() *service {
		s := moving()
		s.restart(start.Add(time.Second))
		return s
	}
	local := func() *service {
		tg := web(podA)
		tg.want[caller].Backends[0].Masquerade = false
		return newService(tg)
	}
	kept := answered(podA, 0)
	kept.seen.Client = caller
	tests := []struct {
		name    string
		service *service
		request request
		want    string // part of the fault; empty: right
	}{
		{"an endpoint", newService(web(podA, podB)), answered(podB, 0), ""},
		{"another Service's endpoint", newService(web(podA, podB)), answered(podC, 0), "which is not an endpoint"},
		{"silence", newService(web(podA)), fated(traffic.Silent), "it should be answered"},
		{"refused", newService(web(podA)), fated(traffic.Refused), "it should be answered"},
		{"broken", newService(web(podA)), fated(traffic.Broken), "it should be answered"},
		{"no endpoints, refused", newService(web()), fated(traffic.Refused), ""},
		{"no endpoints, passed on", newService(web()), fated(traffic.Reset), "it should be refused"},
		{"no endpoints, silence", newService(web()), fated(traffic.Silent), "it should be refused"},
		{"no endpoints, answered", newService(web()), answered(podA, 0), "it should be refused"},
		{"client kept", local(), kept, ""},
		{"client lost", local(), answered(podA, 0), "the client's own address"},
		{"sent before it was taken away", moving(), answered(podB, -time.Millisecond), ""},
		{"soon after it was taken away", moving(), answered(podB, 50*time.Millisecond), ""},
		{"at the bound", moving(), answered(podB, maxDelay), ""},
		{"past the bound", moving(), answered(podB, maxDelay+time.Millisecond), "taken away after 2.001s"},
		{"sent before it settled", settled(), answered(podB, time.Second), ""},
		{"after it settled", settled(), answered(podB, time.Second+time.Millisecond), "taken away after 1.001s"},
		{"soon after it was added", moving(), answered(podC, 50*time.Millisecond), ""},
		{"long after it was added", moving(), answered(podC, maxDelay), "for the first time after 2.001s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.service.record(tt.request)
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
	s := newService(web(podA, podB))
	if !s.settled() {
		t.Error("not settled though nothing moves")
	}
	s.change(web(podA, podC), start)
	take := func(r request) {
		t.Helper()
		if err := s.record(r); err != nil {
			t.Fatal(err)
		}
	}
	take(answered(podB, 7*time.Millisecond))
	for range goneAfter {
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
	if got := s.delayOf(s.seen[podB]); got != 40*time.Millisecond {
		t.Errorf("the last request to B began %v after, want 40ms", got)
	}
	if got := s.delayOf(s.seen[podC]); got != 30*time.Millisecond {
		t.Errorf("the first request reached C %v after, want 30ms", got)
	}
}

// TestVerdict wants a sample in which an endpoint is missing to be a fault, and
// the first wrong request to be one for good.
func TestVerdict(t *testing.T) {
	targets := []target{web(podA, podB)}
	fill := func(st *stats, by ...netip.AddrPort) {
		for range minSample {
			for _, b := range by {
				st.record([]request{answered(b, 0)})
			}
		}
	}
	sampled := func(st *stats) bool { return st.each(func(s *service) bool { return s.sampled >= minSample }) }
	good := newStats(targets)
	if sampled(good) {
		t.Error("sampled before any request")
	}
	fill(good, podA, podB)
	good.checkSamples()
	if err := good.err(); err != nil || !sampled(good) {
		t.Errorf("verdict %v, sampled %t", err, sampled(good))
	}
	missing := newStats(targets)
	fill(missing, podA)
	missing.checkSamples()
	if err := missing.err(); err == nil || !strings.Contains(err.Error(), "none of 100 requests reached 10.244.0.12:8080") {
		t.Errorf("verdict without an endpoint's requests: %v", err)
	}
	empty := newStats(targets)
	empty.checkSamples()
	if err := empty.err(); err == nil || !strings.Contains(err.Error(), "none of 0 requests") {
		t.Errorf("error without requests: %v", err)
	}
	wrong := newStats(targets)
	fill(wrong, podC)
	wrong.services[0].restart(start)
	fill(wrong, podA, podB)
	wrong.checkSamples()
	err := wrong.err()
	if err == nil || !strings.Contains(err.Error(), "100 wrong results") || strings.Count(err.Error(), "\n") != 8 {
		t.Errorf("error after answers of an unexpected pod: %v", err)
	}
}

func TestDelays(t *testing.T) {
	st := newStats([]target{web(podA, podB), to("shop", podA, podB)})
	st.change([]target{to("shop", podA, podC), web(podA, podC)}, start)
	late := answered(podC, 50*time.Millisecond)
	late.service = "shop"
	st.record([]request{answered(podB, 8*time.Millisecond), answered(podC, 9*time.Millisecond), late})
	if got, want := st.delays(), "first to 10.244.1.14 after 51ms, last request to 10.244.0.12 after 8ms"; got != want {
		t.Errorf("delays are %q, want %q", got, want)
	}
}
