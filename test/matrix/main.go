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

// modes returns the modes that run the table. Mode iptables runs it in both variants.
func modes() []string { return []string{"nftables", "iptables", "ipvs"} }

// matrix returns the table: the number of cases by theme and mode.
func matrix() (string, error) {
	var b, last strings.Builder
	var rows []string
	fmt.Fprintf(&b, "| theme | cases in mode %s | stories |\n|---|%s---|\n", strings.Join(modes(), " | in "), strings.Repeat("---|", len(modes())))
	stories := 0
	for i, mode := range modes() {
		themes, err := themes(mode)
		if err != nil {
			return "", err
		}
		all := 0
		for n, t := range themes {
			if i == 0 {
				rows = append(rows, "| "+t.name)
				stories += t.stories
			}
			rows[n] += fmt.Sprintf(" | %d", t.cases)
			if i == len(modes())-1 {
				rows[n] += fmt.Sprintf(" | %d |\n", t.stories)
			}
			all += t.cases
		}
		fmt.Fprintf(&last, " | **%d**", all)
	}
	b.WriteString(strings.Join(rows, ""))
	fmt.Fprintf(&b, "| **all**%s | **%d** |\n", last.String(), stories)
	return b.String(), nil
}

// theme is a file of cases, or the decision tables.
type theme struct {
	name           string
	cases, stories int
}

// themes returns the size of each theme in a mode.
func themes(mode string) (out []theme, err error) {
	parts, err := conformance.Parts(mode)
	for _, p := range parts {
		if len(out) == 0 || out[len(out)-1].name != p.Theme {
			out = append(out, theme{name: p.Theme})
		}
		t := &out[len(out)-1]
		if t.cases += p.Cases; p.Story {
			t.stories++
		}
	}
	return out, err
}
