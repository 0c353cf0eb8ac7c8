package mode

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Rendering writes down, for people and programs to read, what a mode would write
// into the kernel.
type Rendering struct {
	Settings
	Want *proxy.State
	Diff bool                     // what differs from what the kernel has; else all, as if it had nothing
	Only func(proxy.PortKey) bool // the rows that it is about; nil: all, and what is no row's
	Out  io.Writer

	Lines int   // written so far, without remarks
	Err   error // the first one of writing
	title string
}

// Concerns reports whether an object that is for some rows is asked for.
func (r *Rendering) Concerns(rows []*proxy.PortKey) bool {
	return r.Only == nil || slices.ContainsFunc(rows, func(k *proxy.PortKey) bool { return r.Only(*k) })
}

// Title is said before the next line, unless there is none before the next title.
func (r *Rendering) Title(text string) { r.title = text }

// Print writes an object: its lines as they are wanted or, of a difference, those
// that the kernel has and should not have and those that it lacks. What there is on
// both sides is left out, unless the order is all that differs.
func (r *Rendering) Print(was, is []string) {
	if !r.Diff {
		r.lines("", is)
		return
	}
	gone, come := without(was, is), without(is, was)
	if len(gone)+len(come) == 0 {
		gone, come = was, is
	}
	r.lines("- ", gone)
	r.lines("+ ", come)
}

// Remark writes something that is no part of what the kernel gets.
func (r *Rendering) Remark(format string, args ...any) {
	r.flushTitle()
	r.write("# " + fmt.Sprintf(format, args...))
}

// Refused names rows that are not written, and why.
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

// without returns lines, but for those of others, each as often as it is there.
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
