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

// display prints the demo's output. On a terminal each table overwrites the previous one.
type display struct {
	out    *os.File
	live   bool
	colour bool // ANSI colours
	width  int
	drawn  int // lines of the table to overwrite
}

// The colours, as parameters of ANSI's SGR sequence.
const bold, dim, red, green, cyan = "1", "2", "31", "32", "36"

// paint returns a text in a colour; an empty colour means none.
func (d *display) paint(colour, text string) string {
	if !d.colour || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// say prints a line that stays.
func (d *display) say(format string, args ...any) {
	d.drawn = 0
	fmt.Fprintf(d.out, format+"\n", args...)
}

// table prints the current table. On a terminal it overwrites the previous one.
func (d *display) table(headline string, st *stats) {
	if !d.live {
		d.say("%s", strings.Join(d.draw(headline, st), "\n"))
		return
	}
	height := 24
	if w, h, err := term.GetSize(int(d.out.Fd())); err == nil && w > 0 && h > 1 { // the size may change at any time
		d.width, height = w, h
	}
	lines := fit(d.draw(headline, st), height-1)
	if d.drawn > 0 {
		fmt.Fprintf(d.out, "\x1b[%dA", d.drawn) // up
	}
	fmt.Fprint(d.out, strings.Join(lines, "\x1b[K\n")+"\x1b[K\n\x1b[J") // erase to the right, and below
	d.drawn = len(lines)
}

// fit removes empty lines if there are more than fit, and then the last lines.
func fit(lines []string, height int) []string {
	if len(lines) > height {
		lines = slices.DeleteFunc(lines, func(s string) bool { return s == "" })
	}
	return lines[:min(len(lines), height)]
}

// cut truncates a text to the width.
func (d *display) cut(text string) string { return text[:min(len(text), d.width)] }

const columns = 60 // of the table without its bars; a terminal must have more

// draw returns the lines of the table.
func (d *display) draw(headline string, st *stats) []string {
	out := []string{d.paint(bold, d.cut(headline)), d.paint(green, d.cut(st.delays())), ""}
	requests, refused, wrong := 0, 0, 0
	st.each(func(s *service) bool {
		out = append(append(out, d.service(s)...), "")
		requests, refused, wrong = requests+s.requests, refused+s.refused, len(st.errs)
		return true
	})
	return append(out, d.cut(fmt.Sprintf("%.0f requests/s, %d requests, %d refused as expected, %d wrong",
		float64(requests)/time.Since(st.began).Seconds(), requests, refused, wrong)))
}

func (d *display) service(s *service) []string {
	head := fmt.Sprintf("%-5s %s", s.name, s.description)
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

// note describes the state of an endpoint, with the colours of its text and its bar.
func (s *service) note(e *endpoint) (note, text, bar string) {
	switch {
	case e.wanted && e.wantedBefore:
		return "", "", cyan
	case e.wanted && e.first.IsZero():
		return "coming ...", "", green
	case e.wanted:
		return "here" + delay(s.delayOf(e)), "", green
	case e.wantedBefore && s.streak < goneAfter:
		return "leaving ...", dim, red
	case e.wantedBefore:
		return "gone" + delay(s.delayOf(e)), dim, red
	}
	return "gone", dim, red
}
