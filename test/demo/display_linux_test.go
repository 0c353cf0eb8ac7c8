package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// sample has as much as the demo ever shows: B is gone and C has come.
func sample() *stats {
	st := newStats([]target{web(podA, podB), to("shop", podA, podB), to("gate", podA, podB), to("idle")})
	st.change([]target{web(podA, podC), to("shop", podA, podC), to("gate", podA, podC), to("idle")}, start)
	for _, s := range st.services {
		if s.name != "idle" {
			_ = s.record(answered(podB, 4940*time.Microsecond))
		}
		s.restart(start)
		for range goneAfter {
			_ = s.record(answered(podA, 20*time.Millisecond))
		}
		for range goneAfter / 3 {
			_ = s.record(answered(podC, 22*time.Millisecond))
		}
	}
	st.services[3].refused = 2918
	return st
}

func TestDraw(t *testing.T) {
	st := sample()
	st.services = []*service{st.services[0], st.services[3]}
	want := []string{
		"headline",
		"first to 10.244.1.14 after 23ms, last request to 10.244.0.12 after 4.9ms",
		"",
		"web   ClusterIP",
		"  10.244.0.11:8080  ###############.....  75%       60",
		"  10.244.0.12:8080  ....................   0%        1  gone after 4.9ms",
		"  10.244.1.14:8080  #####...............  25%       20  here after 23ms",
		"",
		"idle  ClusterIP: no endpoints, 2918 refused",
		"",
	}
	got := (&display{width: 80}).draw("headline", st)
	if diff := cmp.Diff(want, got[:len(got)-1]); diff != "" {
		t.Errorf("table mismatch (-want +got):\n%s", diff)
	}
	if sums := got[len(got)-1]; !strings.HasSuffix(sums, " 161 requests, 2918 refused as expected, 0 wrong") {
		t.Errorf("the sums are %q", sums)
	}
}

func TestDrawFits(t *testing.T) {
	escapes := regexp.MustCompile("\x1b\\[[0-9]*m")
	for _, size := range []struct{ width, height, lines int }{
		{80, 21, 21}, {120, 40, 21}, {80, 20, 16}, {columns + 1, 10, 10}, {columns + 1, 1, 1},
	} {
		for _, colour := range []bool{false, true} {
			got := fit((&display{width: size.width, colour: colour}).draw(strings.Repeat("headline", 20), sample()), size.height)
			if len(got) != size.lines {
				t.Errorf("%dx%d: %d lines, want %d", size.width, size.height, len(got), size.lines)
			}
			for _, line := range got {
				if !colour && strings.Contains(line, "\x1b") {
					t.Errorf("%dx%d: colour in %q", size.width, size.height, line)
				}
				if n := utf8.RuneCountInString(escapes.ReplaceAllString(line, "")); n > size.width {
					t.Errorf("%dx%d: a line of %d columns: %q", size.width, size.height, n, line)
				}
			}
		}
	}
	if got := (&display{width: 80, colour: true}).draw("headline", sample())[0]; got != "\x1b[1mheadline\x1b[0m" {
		t.Errorf("the headline is %q, want it bold", got)
	}
}

// TestNotes follows an endpoint that comes and one that goes.
func TestNotes(t *testing.T) {
	s := newService(web(podA, podB))
	s.change(web(podA, podC), start)
	check := func(a, b, c string) {
		t.Helper()
		for pod, want := range map[*endpoint]string{s.seen[podA]: a, s.seen[podB]: b, s.seen[podC]: c} {
			if got, _, _ := s.note(pod); got != want {
				t.Errorf("the note is %q, want %q", got, want)
			}
		}
	}
	check("", "leaving ...", "coming ...")
	_ = s.record(answered(podC, 3*time.Millisecond))
	for range goneAfter {
		_ = s.record(answered(podA, 0))
	}
	check("", "gone at once", "here after 4ms")
	s.change(web(podA, podC), start)
	check("", "gone", "")
}
