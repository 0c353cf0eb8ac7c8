package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"sluice/test/vm/guest"
)

// cell is the result of a suite on a kernel.
type cell struct {
	Suite, Kernel string
	Release       string // of the kernel
	Part          string // of the packet table; empty means all
	Passed        int
	Failed        []string
	Skipped       []string // with the reason
	More          omitted  // counts of those not listed
	Error         string   // why it did not finish
	Took          time.Duration
	Commit        string
}

// omitted counts tests whose names are not kept.
type omitted struct{ Failed, Skipped int }

// truncated returns the cell with at most maxListed names of each kind.
func (c cell) truncated() cell {
	cut := func(list []string, more *int) []string {
		keep := min(len(list), maxListed)
		*more += len(list) - keep
		return list[:keep]
	}
	c.Failed, c.Skipped = cut(c.Failed, &c.More.Failed), cut(c.Skipped, &c.More.Skipped)
	return c
}

var (
	outcome   = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+)`)
	testStart = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)`)
	logLine   = regexp.MustCompile(`^ +\S+\.go:\d+: (.*)`)
	bootLine  = regexp.MustCompile(`^guest: Linux (\S+)`)
	// kernelLacks matches the reason of a test that was skipped because of the kernel.
	kernelLacks = regexp.MustCompile(`: (?:the|this) kernel `)
)

// parseOutput counts the tests in the output of go test -v. What a test logs comes before its
// outcome.
func parseOutput(output string) (c cell) {
	name, last := "", map[string]string{}
	for line := range strings.Lines(output) {
		if m := testStart.FindStringSubmatch(line); m != nil {
			name = m[1]
		} else if m := logLine.FindStringSubmatch(line); m != nil {
			last[name] = m[1]
		} else if m := bootLine.FindStringSubmatch(line); m != nil {
			c.Release = m[1]
		}
		m := outcome.FindStringSubmatch(line)
		switch {
		case m == nil:
		case m[1] == "PASS":
			c.Passed++
		case m[1] == "FAIL":
			c.Failed = append(c.Failed, m[2]+": "+last[m[2]])
		case m[1] == "SKIP":
			c.Skipped = append(c.Skipped, m[2]+": "+last[m[2]])
		}
	}
	return c
}

func tail(output string) string { return output[max(0, len(output)-2000):] }

// err returns an error if a test failed or the suite did not finish. Debian's kernels have
// everything that our tests need, so nothing may be skipped for lack of it there.
func (c cell) err() error {
	lacks := slices.IndexFunc(c.Skipped, kernelLacks.MatchString)
	where := fmt.Sprintf("%s on %s", c.Suite, c.Kernel)
	switch {
	case c.Error != "":
		return fmt.Errorf("%s: %s", where, c.Error)
	case len(c.Failed) > 0:
		return fmt.Errorf("%s: %d tests failed:\n%s", where, len(c.Failed), strings.Join(c.Failed, "\n"))
	case lacks >= 0 && c.Kernel != host:
		return fmt.Errorf("%s: skipped, although this kernel has what the test needs: %s", where, c.Skipped[lacks])
	case c.Passed == 0 && len(c.Skipped) == 0:
		return fmt.Errorf("%s: no tests ran", where)
	}
	return nil
}

// String returns the result as it appears in the matrix.
func (c cell) String() string {
	text := fmt.Sprintf("%d pass", c.Passed)
	if n := len(c.Failed) + c.More.Failed; n > 0 {
		text += fmt.Sprintf(", **%d fail**", n)
	}
	if n := len(c.Skipped) + c.More.Skipped; n > 0 {
		text += fmt.Sprintf(", %d skipped", n)
	}
	if c.Error != "" {
		text += ", **did not end**"
	}
	return fmt.Sprintf("%s (%v%s)", text, c.Took, c.Part)
}

// jsonFile returns the file beside a matrix that keeps its cells.
func jsonFile(matrix string) string { return strings.TrimSuffix(matrix, ".md") + ".json" }

// writeMatrix writes the matrix with a new cell. The other cells are from earlier runs; each names
// its commit.
func writeMatrix(to string, played cell) error {
	var cells []cell
	kept := jsonFile(to)
	text, err := os.ReadFile(kept)
	if err == nil {
		err = json.Unmarshal(text, &cells)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cells = append(slices.DeleteFunc(cells, func(c cell) bool { return c.Suite == played.Suite && c.Kernel == played.Kernel }), played.truncated())
	slices.SortFunc(cells, func(a, b cell) int { return cmp.Or(cmp.Compare(a.Suite, b.Suite), cmp.Compare(a.Kernel, b.Kernel)) })
	if text, err = json.MarshalIndent(cells, "", "\t"); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(kept, append(text, '\n'), 0o644), os.WriteFile(to, []byte(markdown(cells)), 0o644))
}

// markdown returns the matrix and, below it, the tests that did not pass.
func markdown(cells []cell) string {
	columns := append(guest.Kernels(), host)
	find := func(suite, kernel string) (cell, bool) {
		i := slices.IndexFunc(cells, func(c cell) bool { return c.Suite == suite && c.Kernel == kernel })
		if i < 0 {
			return cell{}, false
		}
		return cells[i], true
	}
	var b, notes strings.Builder
	b.WriteString(preamble)
	fmt.Fprintf(&b, "| suite | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, s := range suites {
		fmt.Fprintf(&b, "| %s", s.name)
		for _, k := range columns {
			if c, ok := find(s.name, k); ok {
				fmt.Fprintf(&b, " | %v<br>%s", c, c.Commit)
				notes.WriteString(c.notes())
			} else if slices.Contains(s.tooOld, k) {
				b.WriteString(" | too old")
			} else {
				b.WriteString(" | not run")
			}
		}
		b.WriteString(" |\n")
	}
	return b.String() + "\nReleases:" + releases(cells) + "\n" + notes.String()
}

const preamble = `# Kernels

Written by ` + "`make test-kernels`" + `: the tests that depend on the kernel, on Debian's kernels in a virtual machine
([test/vm](../test/vm/README.md)) and on the kernel of the machine that ran it. A suite that runs the packet table includes its cases, stories and
random groups, each by whole states and by increments. A cell shows how many tests passed, how long they took (the machine may have been busy),
and the commit. A kernel is too old if it lacks what the mode needs; ebpf/probe checks that the mode says so.

`

// releases lists the exact release of each kernel version.
func releases(cells []cell) string {
	seen := map[string]string{}
	for _, c := range cells {
		if c.Release != "" {
			seen[c.Kernel] = c.Release
		}
	}
	var text string
	for _, k := range guest.Kernels() {
		if seen[k] != "" {
			text += fmt.Sprintf(" %s is %s.", k, seen[k])
		}
	}
	return text
}

// maxListed is how many tests of a kind are listed.
const maxListed = 5

// notes lists the tests that did not pass, and why.
func (c cell) notes() string {
	var b strings.Builder
	item := func(what string, list []string, more int) {
		if len(list) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s on %s %s:\n\n", c.Suite, c.Kernel, what)
		for _, l := range list {
			fmt.Fprintf(&b, "- `%s`\n", l)
		}
		if more > 0 {
			fmt.Fprintf(&b, "- and %d more\n", more)
		}
	}
	item("failed", c.Failed, c.More.Failed)
	item("skipped", c.Skipped, c.More.Skipped)
	if c.Error != "" {
		first, _, _ := strings.Cut(c.Error, "\n")
		item("did not end", []string{first}, 0)
	}
	return b.String()
}
