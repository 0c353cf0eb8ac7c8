package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const preamble = `# Reliability

Written by ` + "`make reliability`" + `, which does to a daemon what goes wrong in clusters, on real kernels and with real packets. A cell
tells how often it was done, how many of the requests that were made meanwhile failed, and how long it took until all was right again
(half of the repairs, the longest). Rows are what was done, columns are the modes, and there is a table for each kernel: the machine's own,
and Debian's in a virtual machine under emulation, where everything takes about twenty times as long.
`

const features = `
## Features by version of Kubernetes

The themes of the packet table ([README](../README.md)), each case with the objects in a real API server of that version, the whole daemon beside
it and real packets. An object that the API server does not take is left out, and the oracle is asked about what is left. The stories of session affinity are not among them; they are played in each mode without an API server, as are all
cases of the table.
`

// modes are the columns that cells have.
func modes(cells []cell) []string {
	all := []string{"nftables", "iptables", "iptables-legacy", "ipvs", "userspace", "ebpf", "any"}
	return slices.DeleteFunc(all, func(mode string) bool {
		return !slices.ContainsFunc(cells, func(c cell) bool { return c.Mode == mode })
	})
}

// markdown returns the page.
func markdown(cells []cell) string {
	var b strings.Builder
	b.WriteString(preamble)
	faults := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.Kubernetes != "" })
	for _, k := range distinct(faults, func(c cell) string { return c.Kernel }, newer) {
		fmt.Fprintf(&b, "\n## Linux %s\n\n", k)
		b.WriteString(table("what was done", slices.DeleteFunc(slices.Clone(faults), func(c cell) bool { return c.Kernel != k })))
	}
	themes := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.Kubernetes == "" })
	b.WriteString(features)
	for _, k := range distinct(themes, func(c cell) string { return c.Kubernetes }, newer) {
		fmt.Fprintf(&b, "\n### Kubernetes %s\n\n", k)
		b.WriteString(table("theme", slices.DeleteFunc(slices.Clone(themes), func(c cell) bool { return c.Kubernetes != k })))
	}
	b.WriteString(list("What did not reach zero", cells, cell.lost))
	b.WriteString(list("Notes", cells, func(c cell) bool { return c.Note != "" && !c.lost() }))
	commits := distinct(cells, func(c cell) string { return c.Commit }, strings.Compare)
	fmt.Fprintf(&b, "\nThe figures are of the commits %s.\n", strings.Join(commits, ", "))
	return b.String()
}

// table is of one kernel, or of one version of Kubernetes.
func table(title string, cells []cell) string {
	var b strings.Builder
	modes := modes(cells)
	fmt.Fprintf(&b, "| %s | %s |\n|---|%s\n", title, strings.Join(modes, " | "), strings.Repeat("---|", len(modes)))
	for _, fault := range distinct(cells, func(c cell) string { return c.Fault }, strings.Compare) {
		fmt.Fprintf(&b, "| %s", plain(fault))
		for _, mode := range modes {
			b.WriteString(" | ")
			if i := slices.IndexFunc(cells, func(c cell) bool { return c.Fault == fault && c.Mode == mode }); i >= 0 {
				b.WriteString(cells[i].String())
			}
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// list tells of the cells that some words go with.
func list(title string, cells []cell, which func(cell) bool) string {
	var items []string
	about := map[string]int{} // where what is told of several modes is
	for _, c := range cells {
		if !which(c) {
			continue
		}
		text := fmt.Sprintf(", Linux %s: %s\n", c.Kernel, plain(cmp.Or(c.Note, "the cause is not known")))
		if i, ok := about[c.Fault+text]; ok {
			items[i] = strings.TrimSuffix(items[i], text) + ", " + c.Mode + text
			continue
		}
		about[c.Fault+text] = len(items)
		items = append(items, fmt.Sprintf("- %s: %s%s", plain(c.Fault), c.Mode, text))
	}
	if len(items) == 0 {
		items = []string{"Nothing.\n"}
	}
	return fmt.Sprintf("\n## %s\n\n%s", title, strings.Join(items, ""))
}

// lost reports whether something failed.
func (c cell) lost() bool { return c.Failed+c.Misdirected > 0 }

// String returns the cell in some words.
func (c cell) String() string {
	if c.Kubernetes != "" {
		return fmt.Sprintf("%s cases pass", number(c.Tried))
	}
	text := fmt.Sprintf("%s times", number(c.Tried))
	if c.Tried == 1 {
		text = "once"
	}
	if c.Requests > 0 {
		text += fmt.Sprintf("<br>%s of %s failed", number(c.Failed), number(c.Requests))
	}
	if c.Misdirected > 0 {
		text += fmt.Sprintf("<br>**%s misdirected**", number(c.Misdirected))
	}
	if n := len(c.Repairs); n > 0 {
		sorted := slices.Sorted(slices.Values(c.Repairs))
		text += fmt.Sprintf("<br>right after %v", short(sorted[n/2]))
		if n > 1 {
			text += fmt.Sprintf(", at most %v", short(sorted[n-1]))
		}
	}
	return text
}

// distinct returns what there is of a property, in order.
func distinct(cells []cell, of func(cell) string, order func(a, b string) int) (out []string) {
	for _, c := range cells {
		out = append(out, of(c))
	}
	slices.SortFunc(out, order)
	return slices.Compact(out)
}

// newer orders versions of kernels, the newest first.
func newer(a, b string) int {
	numbers := func(v string) (out []int) {
		for part := range strings.SplitSeq(v, ".") {
			n, _ := strconv.Atoi(part)
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(b), numbers(a))
}

// plain is a text that cannot end a cell.
func plain(text string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text) }

// short is a duration that one reads at a glance.
func short(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	default:
		return d.Round(time.Millisecond)
	}
}

// number has a comma before each three digits.
func number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
