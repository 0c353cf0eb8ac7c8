package main

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
)

// display shows the demo in lines. On a terminal a table is written over the one before.
type display struct {
	out    *os.File
	live   bool
	colour bool // ANSI colours
	width  int
	drawn  int // lines of the table that the next one replaces
}

// The colours, as parameters of ANSI's "select graphic rendition".
const bold, dim, red, green, cyan = "1", "2", "31", "32", "36"

// paint returns a text in a colour, or as it is if that is empty.
func (d *display) paint(colour, text string) string {
	if !d.colour || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// say writes a line of text, which stays.
func (d *display) say(format string, args ...any) {
	d.drawn = 0
	fmt.Fprintf(d.out, format+"\n", args...)
}

// table shows the moment. One that moves takes the place of the one before.
func (d *display) table(headline string, st *stats) {
	if !d.live {
		d.say("%s", strings.Join(d.draw(headline, st), "\n"))
		return
	}
	height := 24
	if w, h, err := term.GetSize(int(d.out.Fd())); err == nil && w > 0 && h > 1 { // it may change at any time
		d.width, height = w, h
	}
	lines := fit(d.draw(headline, st), height-1)
	if d.drawn > 0 {
		fmt.Fprintf(d.out, "\x1b[%dA", d.drawn) // up
	}
	fmt.Fprint(d.out, strings.Join(lines, "\x1b[K\n")+"\x1b[K\n\x1b[J") // erase to the right, and below
	d.drawn = len(lines)
}

// fit does without empty lines if there are too many, and then without the end.
func fit(lines []string, height int) []string {
	if len(lines) > height {
		lines = slices.DeleteFunc(lines, func(s string) bool { return s == "" })
	}
	return lines[:min(len(lines), height)]
}

// cut shortens a text to the width.
func (d *display) cut(text string) string { return text[:min(len(text), d.width)] }

const columns = 60 // of the table without a bar: a terminal must have more

// draw returns the table's lines.
func (d *display) draw(headline string, st *stats) []string {
	out := []string{d.paint(bold, d.cut(headline)), d.paint(green, d.cut(st.delays())), ""}
	requests, refused, wrong := 0, 0, 0
	st.each(func(s *service) bool {
		out = append(append(out, d.service(s)...), "")
		requests, refused, wrong = requests+s.requests, refused+s.refused, len(st.faults)
		return true
	})
	return append(out, d.cut(fmt.Sprintf("%.0f requests/s, %d requests, %d refused as they should be, %d wrong",
		float64(requests)/time.Since(st.began).Seconds(), requests, refused, wrong)))
}

func (d *display) service(s *service) []string {
	head := fmt.Sprintf("%-5s %s", s.name, s.what)
	if len(s.endpoints) == 0 {
		return []string{d.paint(dim, d.cut(fmt.Sprintf("%s: no endpoints, %d refused", head, s.refused)))}
	}
	out := []string{d.paint(bold, d.cut(head))}
	for _, a := range slices.SortedFunc(maps.Keys(s.seen), netip.AddrPort.Compare) {
		e := s.seen[a]
		note, text, bar := s.note(e)
		share, width := float64(e.sample)/float64(max(s.sampled, 1)), min(max(d.width-columns, 1), 48)
		full := int(share*float64(width) + 0.5)
		line := d.paint(text, fmt.Sprintf("  %-18s", a)) + d.paint(bar, strings.Repeat("#", full)) +
			d.paint(dim, strings.Repeat(".", width-full)) + d.paint(text, fmt.Sprintf(" %3.0f%%%9d  ", 100*share, e.total))
		out = append(out, strings.TrimRight(line+d.paint(bar, note), " "))
	}
	return out
}

// note says how an endpoint stands, and since when, with the colours of its text and its bar.
func (s *service) note(e *endpoint) (note, text, bar string) {
	switch {
	case e.is && e.was:
		return "", "", cyan
	case e.is && e.first.IsZero():
		return "coming ...", "", green
	case e.is:
		return "here" + delay(s.after(e)), "", green
	case e.was && s.streak < calm:
		return "leaving ...", dim, red
	case e.was:
		return "gone" + delay(s.after(e)), dim, red
	}
	return "gone", dim, red
}
