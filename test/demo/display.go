//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// display shows the demo: as a picture that moves, or in plain lines.
type display interface {
	say(format string, args ...any)    // a line of text, before or after the play
	wait(text string)                  // what is being waited for now
	frame(v view)                      // the picture of the moment
	act(title string, s []serviceView) // an act is over, and where its requests went
	close(v view)                      // the play is over; v is its last picture
}

// screen draws on a terminal, on the alternate screen, so that what was there
// before comes back.
type screen struct {
	out     *os.File
	fd      int
	look    look
	waiting bool
	open    bool
}

// Control sequences of terminals.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseLine   = "\x1b[K"
	eraseBelow  = "\x1b[J"
)

func (s *screen) say(format string, args ...any) {
	s.endWait()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *screen) wait(text string) {
	s.waiting = true
	fmt.Fprint(s.out, "\r"+text+eraseLine)
}

// endWait removes what wait has written.
func (s *screen) endWait() {
	if s.waiting {
		fmt.Fprint(s.out, "\r"+eraseLine)
		s.waiting = false
	}
}

// fit takes the terminal's size, which may change at any time.
func (s *screen) fit() look {
	l := s.look
	l.width, l.height = 80, 24
	if w, h, err := term.GetSize(s.fd); err == nil && w > 0 && h > 0 {
		l.width, l.height = w, h
	}
	return l
}

func (s *screen) frame(v view) {
	s.endWait()
	var b strings.Builder
	if !s.open {
		s.open = true
		b.WriteString(enterScreen)
	}
	b.WriteString(home)
	b.WriteString(strings.Join(s.fit().draw(v), eraseLine+"\r\n"))
	b.WriteString(eraseLine + eraseBelow)
	fmt.Fprint(s.out, b.String())
}

// act does nothing: the picture has shown it.
func (s *screen) act(string, []serviceView) {}

// close leaves the last picture behind, among the lines of the terminal.
func (s *screen) close(v view) {
	s.endWait()
	if !s.open {
		return
	}
	s.open = false
	fmt.Fprint(s.out, leaveScreen)
	l := s.fit()
	l.height = 0
	fmt.Fprintln(s.out, strings.Join(l.draw(v), "\n"))
}

// lines writes one line for each thing that happens.
type lines struct{ out io.Writer }

func (p *lines) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }
func (p *lines) wait(string)                    {}
func (p *lines) frame(view)                     {}
func (p *lines) close(view)                     {}

// act writes where the requests of the act went.
func (p *lines) act(title string, services []serviceView) {
	fmt.Fprintln(p.out, title)
	for _, s := range services {
		if s.refused {
			fmt.Fprintf(p.out, "  %-5s %s: no endpoints, %s refused\n", s.name, s.what, thousands(s.requests))
			continue
		}
		var parts []string
		for _, r := range s.rows {
			if r.state == gone && r.share == 0 {
				if r.note != "gone" {
					parts = append(parts, fmt.Sprintf("%s %s", r.addr, r.note))
				}
				continue
			}
			part := fmt.Sprintf("%s %.0f%%", r.addr, 100*r.share)
			if r.note != "" {
				part += " (" + r.note + ")"
			}
			parts = append(parts, part)
		}
		fmt.Fprintf(p.out, "  %-5s %s\n        -> %s\n", s.name, s.what, strings.Join(parts, ", "))
	}
}
