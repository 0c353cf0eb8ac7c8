// Command matrix writes what the packet table covers into a Markdown file,
// between the lines that say so. `make generate` runs it on the README; with
// --check it only says whether the file is up to date.
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
		return fmt.Errorf("%s has no place for the matrix: %q and %q are missing", file, begin, end)
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

// matrix returns the table: each theme with the cases that are played in a mode.
func matrix() (string, error) {
	themes, err := conformance.Themes("nftables")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| theme | cases | stories |\n|---|---|---|\n")
	var cases, stories int
	for _, t := range themes {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", t.Name, t.Cases, t.Stories)
		cases += t.Cases
		stories += t.Stories
	}
	fmt.Fprintf(&b, "| **all, in mode nftables** | **%d** | **%d** |\n", cases, stories)
	return b.String(), nil
}
