// Command reliability writes docs/reliability.md from the output of fault tests. `make reliability`
// runs those tests first. Results that are not in the given files stay as they are.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"sluice/internal/conformance/reliability"
)

func main() {
	page := flag.String("page", "docs/reliability.md", "write this `file`; a JSON file beside it keeps the figures")
	commit := flag.String("commit", "", "the `commit` under test")
	check := flag.Bool("check", false, "change nothing, fail if the page does not match its figures")
	flag.Parse()
	if err := run(*page, *commit, *check, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// cell is a result and its commit.
type cell struct {
	reliability.Result
	Commit string
}

func run(page, commit string, check bool, outputs []string) error {
	kept := strings.TrimSuffix(page, ".md") + ".json"
	cells, err := load(kept)
	if err != nil {
		return err
	}
	if check {
		text, err := os.ReadFile(page)
		if err == nil && string(text) != markdown(cells) {
			err = fmt.Errorf("%s does not match %s: run go run ./test/reliability", page, kept)
		}
		return err
	}
	played, err := read(commit, outputs)
	if err != nil {
		return err
	}
	cells = merge(cells, played)
	text, err := json.MarshalIndent(cells, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(kept, append(text, '\n'), 0o644), os.WriteFile(page, []byte(markdown(cells)), 0o644))
}

// load returns the results of earlier runs.
func load(kept string) (cells []cell, err error) {
	text, err := os.ReadFile(kept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &cells)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kept, err)
	}
	return cells, nil
}

// read returns the results in the outputs of tests.
func read(commit string, outputs []string) (cells []cell, err error) {
	for _, name := range outputs {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		results, err := reliability.Read(string(text))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		for _, r := range results {
			cells = add(cells, cell{r, commit})
		}
	}
	return cells, nil
}

// same reports whether two results have the same fault, mode, kernel and version of Kubernetes.
func (c cell) same(other cell) bool {
	return c.Fault == other.Fault && c.Mode == other.Mode && c.Kernel == other.Kernel && c.Kubernetes == other.Kubernetes
}

// add adds a result, and sums several results of the same fault.
func add(cells []cell, c cell) []cell {
	i := slices.IndexFunc(cells, c.same)
	if i < 0 {
		return append(cells, c)
	}
	sum := &cells[i]
	sum.Tried += c.Tried
	sum.Requests += c.Requests
	sum.Failed += c.Failed
	sum.Misdirected += c.Misdirected
	sum.Repairs = append(sum.Repairs, c.Repairs...)
	if !strings.Contains(sum.Note, c.Note) {
		sum.Note = strings.TrimPrefix(sum.Note+"; "+c.Note, "; ")
	}
	return cells
}

// merge replaces old results with new ones.
func merge(cells, played []cell) []cell {
	cells = slices.DeleteFunc(cells, func(c cell) bool { return slices.ContainsFunc(played, c.same) })
	cells = append(cells, played...)
	slices.SortStableFunc(cells, func(a, b cell) int {
		return slices.Compare([]string{a.Fault, a.Kernel, a.Kubernetes, a.Mode}, []string{b.Fault, b.Kernel, b.Kubernetes, b.Mode})
	})
	return cells
}
