package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

const (
	tableGap = 3  // spaces between the cells of a table, as with kubectl
	minText  = 20 // the narrowest column of text that is wrapped
)

// table writes lines with aligned cells, as kubectl does. If they are too wide for a
// terminal, each name gets a line of its own, with the other cells in the next one.
type table struct {
	out     io.Writer
	rows    [][]string // of clean cells
	columns int        // of the terminal; 0: unlimited
	names   int        // how many cells, from the first, are parts of a name
}

func newTable(w io.Writer, heads ...string) *table {
	t := &table{out: w}
	if len(heads) > 0 {
		t.line(heads...)
	}
	return t
}

// fit makes the table fit a terminal; the first cells of each line are parts of a name.
func (t *table) fit(columns, names int) *table {
	t.columns, t.names = columns, names
	return t
}

func (t *table) line(cells ...string) {
	row := make([]string, len(cells))
	for i := range cells {
		if row[i] = Clean(cells[i]); row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Flush writes the lines.
func (t *table) Flush() error {
	var b strings.Builder
	aligned := tabwriter.NewWriter(&b, 0, 8, tableGap, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(aligned, strings.Join(row, "\t"))
	}
	_ = aligned.Flush() // into memory
	text := b.String()
	if (screen{columns: t.columns + 1}).excess(text) > 0 && t.columns > 0 {
		text = t.stacked()
	}
	_, err := io.WriteString(t.out, text)
	return err
}

// stacked returns the table with each name on a line of its own, which is never
// shortened, and below it the other cells, shortened to the widths that fit.
func (t *table) stacked() string {
	const indent = 2
	var b strings.Builder
	widths := t.widths(t.columns - indent)
	for _, row := range t.rows {
		name := strings.Join(row[:t.names], "/")
		if utf8.RuneCountInString(name) > t.columns {
			name = strings.ReplaceAll(name, "/", "/\n")
		}
		fmt.Fprintln(&b, name)
		cells := row[t.names:]
		last := len(cells) - 1
		start := strings.Repeat(" ", indent)
		for i, cell := range cells[:last] {
			start += fmt.Sprintf("%-*s", widths[i]+tableGap, shorten(cell, widths[i]))
		}
		for _, text := range wrap(cells[last], widths[last]) {
			fmt.Fprintln(&b, start+shorten(text, widths[last]))
			start = strings.Repeat(" ", utf8.RuneCountInString(start))
		}
	}
	return b.String()
}

// widths returns the widths of the cells after the name, so that they fit into so many
// columns: first text in the last cell is narrowed, which is wrapped, then whichever
// column is the widest.
func (t *table) widths(columns int) []int {
	widths := make([]int, len(t.rows[0])-t.names)
	excess, last := tableGap*(len(widths)-1)-columns, len(widths)-1
	for i := range widths {
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[t.names+i]))
		}
		excess += widths[i]
	}
	isText := slices.ContainsFunc(t.rows, func(row []string) bool { return strings.Contains(row[t.names+last], " ") })
	if isText && excess > 0 {
		less := min(excess, max(0, widths[last]-minText))
		widths[last], excess = widths[last]-less, excess-less
	}
	for ; excess > 0; excess-- {
		widths[slices.Index(widths, slices.Max(widths))]--
	}
	return widths
}

// writeFitted is [writeAll] for text that must fit a terminal.
func writeFitted(w io.Writer, columns int, write func(w io.Writer) error) error {
	return writeAll(w, func(w io.Writer) error {
		var b strings.Builder
		if err := write(&b); err != nil {
			return err
		}
		_, err := io.WriteString(w, fitLines(b.String(), columns))
		return err
	})
}

// fitLines wraps the lines of a text that are wider than a terminal. What follows is
// indented by two columns more.
func fitLines(text string, columns int) string {
	if columns == 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line) <= columns {
			b.WriteString(line + "\n")
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		width := columns - indent - 2
		for i, l := range wrap(breakWords(line, width), width) {
			b.WriteString(strings.Repeat(" ", indent+2*min(i, 1)) + l + "\n")
		}
	}
	return b.String()
}

// breakWords breaks words that are longer than a width.
func breakWords(text string, width int) string {
	words := strings.Fields(text)
	for i, w := range words {
		var parts []string
		for part := range slices.Chunk([]rune(w), max(1, width)) {
			parts = append(parts, string(part))
		}
		words[i] = strings.Join(parts, " ")
	}
	return strings.Join(words, " ")
}
