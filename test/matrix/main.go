// Command matrix writes the coverage of the packet table into a Markdown file, between two marker
// lines. `make generate` runs it on the README; with --check it only reports whether the file is up
// to date.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"sluice/internal/conformance"
)

const (
	begin = "<!-- begin: written by make generate -->\n"
	end   = "<!-- end: written by make generate -->\n"
)

func main() {
	check := flag.Bool("check", false, "change nothing, fail if the file is out of date")
	flag.Parse()
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(file string, check bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("update %s: marker lines %q and %q are missing", file, begin, end)
	}
	matrix, err := matrix()
	if err != nil {
		return err
	}
	fresh := before + begin + matrix + end + after
	switch {
	case fresh == string(text):
		return nil
	case check:
		return fmt.Errorf("%s is out of date: run make generate", file)
	default:
		return os.WriteFile(file, []byte(fresh), 0o644)
	}
}

// column is the modes that run the same cases.
type column struct {
	title  string
	mode   string // whose cases they are
	noSCTP bool
}

// columns returns the columns of the table. Mode iptables runs its cases in both variants.
func columns() []column {
	return []column{
		{title: "nftables, ebpf", mode: "nftables"},
		{title: "iptables", mode: "iptables"},
		{title: "ipvs", mode: "ipvs"},
		{title: "userspace", mode: "nftables", noSCTP: true},
	}
}

// matrix returns the table: the number of cases by theme and mode.
func matrix() (string, error) {
	var header, all string
	var names, rows []string
	var stories []int
	for i, c := range columns() {
		themes, err := themes(c)
		if err != nil {
			return "", err
		}
		header += " in " + c.title + " |"
		total := 0
		for n, t := range themes {
			if i == 0 {
				names, rows, stories = append(names, t.name), append(rows, ""), append(stories, t.stories)
			}
			rows[n] += fmt.Sprintf(" %d |", t.cases)
			total += t.cases
		}
		all += fmt.Sprintf(" **%d** |", total)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| cases |%s stories |\n|---|%s---|\n", header, strings.Repeat("---|", len(columns())))
	sum := 0
	for n, name := range names {
		fmt.Fprintf(&b, "| %s |%s %d |\n", name, rows[n], stories[n])
		sum += stories[n]
	}
	fmt.Fprintf(&b, "| **all** |%s **%d** |\n", all, sum)
	return b.String(), nil
}

// theme is a file of cases, or the decision tables.
type theme struct {
	name           string
	cases, stories int
}

// themes returns the size of each theme in a column.
func themes(c column) (out []theme, err error) {
	parts, err := conformance.Parts(c.mode)
	for _, p := range parts {
		if len(out) == 0 || out[len(out)-1].name != p.Theme {
			out = append(out, theme{name: p.Theme})
		}
		t := &out[len(out)-1]
		if t.cases += p.Cases; c.noSCTP {
			t.cases -= p.SCTP
		}
		if p.Story {
			t.stories++
		}
	}
	return out, err
}
