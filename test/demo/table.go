//go:build linux

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// look is what the output can show.
type look struct {
	width  int
	height int  // 0: any
	colour bool // ANSI colours
	blocks bool // block characters of Unicode
}

// The colours, as parameters of ANSI's "select graphic rendition".
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// span is a piece of a line in one colour.
type span struct {
	text   string
	colour string
}

// line is one line of the picture, not yet cut to the width.
type line []span

// columns that are not the bar's: indent and address, share, total, note and
// the spaces between.
const (
	addrColumn = 19
	noteColumn = 19
	fixed      = addrColumn + 2 + 4 + 2 + 9 + 2 + noteColumn
	minBar     = 8
	maxBar     = 48
)

// draw returns the picture as lines that fit. When it is too high it does
// without empty lines, and then without the end.
func (l look) draw(v view) []string {
	all := l.picture(v)
	if l.height > 0 && len(all) > l.height {
		var dense []line
		for _, x := range all {
			if len(x) > 0 && x[0].text != "" {
				dense = append(dense, x)
			}
		}
		all = dense[:min(len(dense), l.height)]
	}
	out := make([]string, len(all))
	for i, x := range all {
		out[i] = l.render(x)
	}
	return out
}

// picture lays out the whole view.
func (l look) picture(v view) []line {
	all := []line{{{v.title, dim}}, {{v.headline, bold}}, {{v.delays, green}}, {}}
	for _, s := range v.services {
		all = append(all, l.service(s)...)
	}
	failed := green
	if v.failed > 0 {
		failed = red
	}
	return append(all, line{
		{fmt.Sprintf("%s requests/s   %s requests   %s refused   ",
			thousands(int(v.rate+0.5)), thousands(v.requests), thousands(v.refused)), plain},
		{thousands(v.failed) + " wrong", failed},
		{"   " + v.hint, dim},
	})
}

func (l look) service(s serviceView) []line {
	head := line{{fmt.Sprintf("%-6s", s.name), bold}, {s.what, plain}}
	if s.refused {
		// What has no endpoints has one line.
		return []line{append(head, span{": no endpoints, ", plain}, span{thousands(s.requests) + " refused", yellow}), {}}
	}
	out := []line{head}
	for _, r := range s.rows {
		out = append(out, l.row(r))
	}
	return append(out, line{})
}

func (l look) row(r rowView) line {
	colour, text := cyan, plain
	switch r.state {
	case serving:
	case arrived:
		colour = green
	case gone:
		colour, text = red, dim
	default:
		panic(fmt.Sprintf("unknown state %d", uint8(r.state)))
	}
	width := min(max(l.width-fixed, minBar), maxBar)
	full, rest := l.bar(r.share, width)
	return line{
		{fmt.Sprintf("%-*s", addrColumn, "  "+r.addr), text},
		{full, colour},
		{rest, dim},
		{fmt.Sprintf("  %3.0f%%  %9s  ", 100*r.share, thousands(r.total)), text},
		{r.note, colour},
	}
}

// bar returns a bar of a width, the full and the empty part.
func (l look) bar(share float64, width int) (full, rest string) {
	share = min(max(share, 0), 1)
	if !l.blocks {
		n := int(share*float64(width) + 0.5)
		return strings.Repeat("#", n), strings.Repeat(".", width-n)
	}
	const eighths = "▏▎▍▌▋▊▉"
	n := int(share*float64(width)*8 + 0.5)
	full = strings.Repeat("█", n/8)
	if part := n % 8; part > 0 {
		full += string([]rune(eighths)[part-1])
	}
	return full, strings.Repeat("░", width-utf8.RuneCountInString(full))
}

// render cuts a line to the width and colours it.
func (l look) render(x line) string {
	var b strings.Builder
	left := l.width
	for _, s := range x {
		text := []rune(s.text)
		text = text[:min(len(text), left)]
		left -= len(text)
		if len(text) == 0 {
			continue
		}
		if l.colour && s.colour != plain {
			fmt.Fprintf(&b, "\x1b[%sm%s\x1b[0m", s.colour, string(text))
		} else {
			b.WriteString(string(text))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// isUTF8 reports whether the locale can show more than ASCII.
func isUTF8(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(env(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return false
}
