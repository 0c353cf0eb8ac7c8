package cli

import (
	"strings"
	"unicode/utf8"
)

// screen is the size of a terminal; 0 means unlimited.
type screen struct{ columns, lines int }

// excess returns by how many columns the longest line is too long. The last column
// stays free: with the cursor there, clearing the rest of the line would also clear
// the last character.
func (s screen) excess(text string) (n int) {
	if s.columns == 0 {
		return 0
	}
	for line := range strings.Lines(text) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))-(s.columns-1))
	}
	return n
}

// clip shortens lines that would wrap.
func (s screen) clip(text string) string {
	if s.excess(text) == 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(shorten(strings.TrimSuffix(line, "\n"), s.columns-1) + "\n")
	}
	return b.String()
}

// shorten cuts text to width characters, the last of which is then an ellipsis.
func shorten(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}
