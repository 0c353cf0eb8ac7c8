package main

import (
	"fmt"
	"path"
	"strings"
)

// header returns the first lines of the table in Markdown.
func header(phases []phase) string {
	head, line := "| mutation | kind |", "|---|---|"
	for _, p := range phases {
		head, line = head+" noticed by "+p.name+" | s |", line+"---|--:|"
	}
	return head + "\n" + line + "\n"
}

// row returns the line of a mutation. A phase that did not run, because the one before had
// noticed the mutation, is empty.
func row(m mutation, results []result, phases int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |", m.name, m.kind)
	for i := range phases {
		if i >= len(results) {
			b.WriteString(" | |")
			continue
		}
		fmt.Fprintf(&b, " %s | %.0f |", results[i], results[i].took.Seconds())
	}
	return b.String() + "\n"
}

func (r result) String() string {
	name := path.Base(r.by.pkg) + ": " + r.by.test
	switch {
	case r.invalid != "" && r.by == failure{}:
		return "INVALID: " + r.invalid
	case r.invalid != "":
		return "INVALID: " + name + ": " + r.invalid
	case r.by == failure{}:
		return "SURVIVED"
	default:
		return strings.ReplaceAll(name, "|", `\|`)
	}
}
