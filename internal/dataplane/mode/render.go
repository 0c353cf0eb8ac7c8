package mode

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Rendering prints what a mode would write to the kernel, for people and programs to read.
type Rendering struct {
	Settings
	Want *proxy.State
	Diff bool                     // print only what differs from what the kernel has
	Only func(proxy.PortKey) bool // the rows to print; nil for all rows and objects without rows
	Out  io.Writer

	Lines int   // lines printed so far, without titles and remarks
	Err   error // the first error of Out
	title string
}

// Concerns reports whether an object that belongs to the given rows is to be printed.
func (r *Rendering) Concerns(rows []*proxy.PortKey) bool {
	return r.Only == nil || slices.ContainsFunc(rows, func(k *proxy.PortKey) bool { return r.Only(*k) })
}

// Title sets a title, which is printed before the next line. It is not printed if no line
// follows before the next title.
func (r *Rendering) Title(text string) { r.title = text }

// Print prints an object: its wanted lines or, if Diff is set, the lines that would be
// removed and those that would be added. Lines that both sides have are left out, unless
// only their order differs.
func (r *Rendering) Print(was, is []string) {
	if !r.Diff {
		r.lines("", is)
		return
	}
	removed, added := without(was, is), without(is, was)
	if len(removed)+len(added) == 0 {
		removed, added = was, is
	}
	r.lines("- ", removed)
	r.lines("+ ", added)
}

// Remark prints a comment.
func (r *Rendering) Remark(format string, args ...any) {
	r.flushTitle()
	r.write("# " + fmt.Sprintf(format, args...))
}

// Refused prints the rows that would not be written, and why.
func (r *Rendering) Refused(rows proxy.Refused) {
	for _, k := range slices.SortedFunc(maps.Keys(rows), proxy.ComparePortKeys) {
		if r.Concerns([]*proxy.PortKey{&k}) {
			r.Remark("%v is refused: %v", k, rows[k])
		}
	}
}

func (r *Rendering) lines(sign string, lines []string) {
	for _, l := range lines {
		r.flushTitle()
		r.write(sign + l)
		r.Lines++
	}
}

func (r *Rendering) flushTitle() {
	if r.title != "" {
		r.write("# " + r.title)
		r.title = ""
	}
}

func (r *Rendering) write(line string) {
	if r.Err == nil {
		_, r.Err = fmt.Fprintln(r.Out, line)
	}
}

// without returns lines without those of others, as a multiset.
func without(lines, others []string) (out []string) {
	n := map[string]int{}
	for _, l := range others {
		n[l]++
	}
	for _, l := range lines {
		if n[l]--; n[l] < 0 {
			out = append(out, l)
		}
	}
	return out
}
