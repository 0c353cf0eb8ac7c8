package cli

import (
	"strings"
	"unicode/utf8"
)

// screen is how much there is room for; 0: any number of them.
type screen struct{ columns, lines int }

// excess returns how many columns the longest line has too many. The last column
// stays free: who clears the rest of a line there clears what was written, too.
func (s screen) excess(text string) (n int) {
	if s.columns == 0 {
		return 0
	}
	for line := range strings.Lines(text) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))-(s.columns-1))
	}
	return n
}

// clip shortens lines that would go on in the next.
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

// shorten cuts a text that has more characters than there is room for.
func shorten(text string, room int) string {
	if utf8.RuneCountInString(text) <= room {
		return text
	}
	return string([]rune(text)[:max(0, room-1)]) + "…"
}
