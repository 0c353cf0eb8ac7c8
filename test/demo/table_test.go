package main

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestBar(t *testing.T) {
	tests := []struct {
		share  float64
		width  int
		blocks bool
		want   string
	}{
		{0, 4, false, "|...."},
		{0.5, 4, false, "##|.."},
		{1, 4, false, "####|"},
		{1.5, 4, false, "####|"},
		{-1, 4, false, "|...."},
		{0, 4, true, "|░░░░"},
		{0.25, 4, true, "█|░░░"},
		{1.0 / 32, 4, true, "▏|░░░"},
		{0.375, 4, true, "█▌|░░"},
		{31.0 / 32, 4, true, "███▉|"},
		{1, 4, true, "████|"},
	}
	for _, tt := range tests {
		full, rest := look{blocks: tt.blocks}.bar(tt.share, tt.width)
		if got := full + "|" + rest; got != tt.want {
			t.Errorf("bar(%v, %d, blocks %t) = %s, want %s", tt.share, tt.width, tt.blocks, got, tt.want)
		}
	}
}

// sampleView has as much as the demo ever shows.
func sampleView() view {
	rows := []rowView{
		{addr: "10.244.0.11:8080", share: 0.5, total: 1234567},
		{addr: "10.244.0.12:8080", total: 814, state: gone, note: "gone after 4.9 ms"},
		{addr: "10.244.0.13:8080", share: 0.25, total: 17},
		{addr: "10.244.1.14:8080", share: 0.25, total: 3, state: arrived, note: "here after 23 ms"},
	}
	return view{
		title: "title", headline: "headline", delays: "delays", hint: "hint",
		services: []serviceView{
			{name: "web", what: "ClusterIP", rows: rows},
			{name: "shop", what: "NodePort", rows: rows},
			{name: "gate", what: "LoadBalancer", rows: rows[:3]},
			{name: "idle", what: "ClusterIP", refused: true, requests: 2918},
		},
		rate: 1203.4, requests: 17500, refused: 2918, failed: 2,
	}
}

func TestDraw(t *testing.T) {
	v := sampleView()
	v.services = append(v.services[:1], v.services[3])
	want := []string{
		"title",
		"headline",
		"delays",
		"",
		"web   ClusterIP",
		"  10.244.0.11:8080 ############...........   50%  1,234,567",
		"  10.244.0.12:8080 .......................    0%        814  gone after 4.9 ms",
		"  10.244.0.13:8080 ######.................   25%         17",
		"  10.244.1.14:8080 ######.................   25%          3  here after 23 ms",
		"",
		"idle  ClusterIP: no endpoints, 2,918 refused",
		"",
		"1,203 requests/s   17,500 requests   2,918 refused   2 wrong   hint",
	}
	if diff := cmp.Diff(want, look{width: 80}.draw(v)); diff != "" {
		t.Errorf("picture mismatch (-want +got):\n%s", diff)
	}
}

func TestDrawFits(t *testing.T) {
	escapes := regexp.MustCompile("\x1b\\[[0-9]*m")
	for _, size := range []struct{ width, height, lines int }{
		{80, 24, 24}, {120, 40, 24}, {80, 23, 19}, {40, 10, 10}, {1, 1, 1},
	} {
		for _, l := range []look{{}, {colour: true, blocks: true}} {
			l.width, l.height = size.width, size.height
			got := l.draw(sampleView())
			if len(got) != size.lines {
				t.Errorf("%dx%d: %d lines, want %d", size.width, size.height, len(got), size.lines)
			}
			for _, line := range got {
				if l.colour == false && strings.Contains(line, "\x1b") {
					t.Errorf("%dx%d: colour in %q", size.width, size.height, line)
				}
				if n := utf8.RuneCountInString(escapes.ReplaceAllString(line, "")); n > size.width {
					t.Errorf("%dx%d: a line of %d columns: %q", size.width, size.height, n, line)
				}
			}
		}
	}
	if got := (look{width: 80, colour: true}).draw(sampleView())[1]; got != "\x1b[1mheadline\x1b[0m" {
		t.Errorf("the headline is %q, want it bold", got)
	}
}

func TestShares(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:1")
	got := shares(map[netip.AddrPort]int{a: 3, b: 1})
	if want := map[netip.AddrPort]float64{a: 0.75, b: 0.25}; !cmp.Equal(got[a], want[a]) || !cmp.Equal(got[b], want[b]) || len(got) != 2 {
		t.Errorf("shares are %v, want %v", got, want)
	}
	if got := shares(nil); len(got) != 0 {
		t.Errorf("shares of nothing are %v", got)
	}
}

func TestWords(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "at once", 4940 * time.Microsecond: "after 4.9 ms",
		23400 * time.Microsecond: "after 23 ms", 2040 * time.Millisecond: "after 2.0 s",
	} {
		if got := delay(d); got != want {
			t.Errorf("delay(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestIsUTF8(t *testing.T) {
	tests := []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "en_GB.UTF-8"}, true},
		{map[string]string{"LANG": "C.utf8"}, true},
		{map[string]string{"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, false},
	}
	for _, tt := range tests {
		if got := isUTF8(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("isUTF8 of %v = %t, want %t", tt.env, got, tt.want)
		}
	}
}

func TestLines(t *testing.T) {
	var b strings.Builder
	v := sampleView()
	v.services[0].rows[2] = rowView{addr: "10.244.0.13:8080", state: gone, note: "gone"}
	(&lines{&b}).act("2/4  title", []serviceView{v.services[0], v.services[3]})
	want := `2/4  title
  web   ClusterIP
        -> 10.244.0.11:8080 50%, 10.244.0.12:8080 gone after 4.9 ms, 10.244.1.14:8080 25% (here after 23 ms)
  idle  ClusterIP: no endpoints, 2,918 refused
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("lines mismatch (-want +got):\n%s", diff)
	}
}
