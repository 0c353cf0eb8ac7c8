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

Written by ` + "`make reliability`" + `, which injects the faults that happen in clusters, on real kernels and with real packets. A cell
shows how often the fault was injected, how many of the requests sent meanwhile failed, and how long it took until everything was correct again
(median and maximum). Rows are faults, columns are modes, and there is a table for each kernel: the machine's own, and Debian's in a virtual
machine under emulation, where everything takes about twenty times as long.
`

const features = `
## Features by version of Kubernetes

The themes of the packet table ([README](../README.md)), each case with the objects in a real API server of that version, the whole daemon beside
it and real packets. An object that the API server rejects is left out, and the oracle evaluates the remaining ones. The stories of session
affinity are not included; they run in each mode without an API server, as do all cases of the table.
`

// modes returns the columns of a table.
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
	for _, k := range distinct(faults, func(c cell) string { return c.Kernel }, compareVersions) {
		fmt.Fprintf(&b, "\n## Linux %s\n\n", k)
		b.WriteString(table("fault", slices.DeleteFunc(slices.Clone(faults), func(c cell) bool { return c.Kernel != k })))
	}
	themes := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool { return c.Kubernetes == "" })
	b.WriteString(features)
	for _, k := range distinct(themes, func(c cell) string { return c.Kubernetes }, compareVersions) {
		fmt.Fprintf(&b, "\n### Kubernetes %s\n\n", k)
		b.WriteString(table("theme", slices.DeleteFunc(slices.Clone(themes), func(c cell) bool { return c.Kubernetes != k })))
	}
	b.WriteString(list("What did not reach zero", cells, cell.hasFailures))
	b.WriteString(list("Notes", cells, func(c cell) bool { return c.Note != "" && !c.hasFailures() }))
	commits := distinct(cells, func(c cell) string { return c.Commit }, strings.Compare)
	fmt.Fprintf(&b, "\nThe figures are of the commits %s.\n", strings.Join(commits, ", "))
	return b.String()
}

// table returns the table of one kernel or one version of Kubernetes.
func table(title string, cells []cell) string {
	var b strings.Builder
	modes := modes(cells)
	fmt.Fprintf(&b, "| %s | %s |\n|---|%s\n", title, strings.Join(modes, " | "), strings.Repeat("---|", len(modes)))
	for _, fault := range distinct(cells, func(c cell) string { return c.Fault }, strings.Compare) {
		fmt.Fprintf(&b, "| %s", escapeCell(fault))
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

// list returns the notes of the selected cells; modes with the same note share an item.
func list(title string, cells []cell, which func(cell) bool) string {
	var items []string
	index := map[string]int{} // of the item, by fault and text
	for _, c := range cells {
		if !which(c) {
			continue
		}
		text := fmt.Sprintf(", Linux %s: %s\n", c.Kernel, escapeCell(cmp.Or(c.Note, "the cause is unknown")))
		if i, ok := index[c.Fault+text]; ok {
			items[i] = strings.TrimSuffix(items[i], text) + ", " + c.Mode + text
			continue
		}
		index[c.Fault+text] = len(items)
		items = append(items, fmt.Sprintf("- %s: %s%s", escapeCell(c.Fault), c.Mode, text))
	}
	if len(items) == 0 {
		items = []string{"Nothing.\n"}
	}
	return fmt.Sprintf("\n## %s\n\n%s", title, strings.Join(items, ""))
}

// hasFailures reports whether requests failed or were misdirected.
func (c cell) hasFailures() bool { return c.Failed+c.Misdirected > 0 }

// String returns the text of the cell.
func (c cell) String() string {
	if c.Kubernetes != "" {
		return fmt.Sprintf("%s cases pass", groupDigits(c.Tried))
	}
	text := fmt.Sprintf("%s times", groupDigits(c.Tried))
	if c.Tried == 1 {
		text = "once"
	}
	if c.Requests > 0 {
		text += fmt.Sprintf("<br>%s of %s failed", groupDigits(c.Failed), groupDigits(c.Requests))
	}
	if c.Misdirected > 0 {
		text += fmt.Sprintf("<br>**%s misdirected**", groupDigits(c.Misdirected))
	}
	if n := len(c.Repairs); n > 0 {
		sorted := slices.Sorted(slices.Values(c.Repairs))
		text += fmt.Sprintf("<br>correct after %v", roundShort(sorted[n/2]))
		if n > 1 {
			text += fmt.Sprintf(", at most %v", roundShort(sorted[n-1]))
		}
	}
	return text
}

// distinct returns the distinct values of a property, sorted.
func distinct(cells []cell, of func(cell) string, order func(a, b string) int) (out []string) {
	for _, c := range cells {
		out = append(out, of(c))
	}
	slices.SortFunc(out, order)
	return slices.Compact(out)
}

// compareVersions orders versions, newest first.
func compareVersions(a, b string) int {
	numbers := func(v string) (out []int) {
		for part := range strings.SplitSeq(v, ".") {
			n, _ := strconv.Atoi(part)
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(b), numbers(a))
}

// escapeCell escapes what would end a table cell.
func escapeCell(text string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text) }

// roundShort rounds a duration to two or three digits.
func roundShort(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	default:
		return d.Round(time.Millisecond)
	}
}

// groupDigits formats a number with thousands separators.
func groupDigits(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
