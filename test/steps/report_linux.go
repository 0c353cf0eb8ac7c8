package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// printer reports on a terminal or in a log of CI.
type printer struct {
	begin time.Time
	out   io.Writer
	logs  string // directory with the whole output of each step
}

func (p printer) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format, args...) }

// clock is the time since the beginning.
func (p printer) clock() string {
	s := int(time.Since(p.begin).Seconds())
	return fmt.Sprintf("%3d:%02d", s/60, s%60)
}

func (p printer) started(s step) { p.printf("%s  %-12s started\n", p.clock(), s.name) }

// ended shows at once what failed.
func (p printer) ended(r *result) {
	c, outcome := r.counts(), "ok"
	if r.failed() {
		outcome = "FAILED"
	}
	p.printf("%s  %-12s %s after %.1f s: %s\n", p.clock(), r.step.name, outcome, r.took.Seconds(), c)
	if r.failed() {
		p.printf("%s%s: all of its output is in %s\n", r.failures(), r.step.name, filepath.Join(p.logs, r.step.name))
	}
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// tables reports all steps and packages, the slowest ones first, and at last the sum.
func (p printer) tables(results []*result) {
	bySeconds := func(a, b *result) int { return cmp.Compare(b.took, a.took) }
	results = slices.SortedStableFunc(slices.Values(results), bySeconds)
	p.steps(results)
	p.packages(results)
	p.skipped(results)
	var sum counts
	for _, r := range results {
		sum.add(r.counts())
		if r.failed() && r.counts().failed == 0 {
			sum.failed++
		}
	}
	p.printf("\n%s\n", sum)
}

// steps prints a line for each step. Without subtests, so that a table of a hundred cases counts
// as a hundred tests and not as one more.
func (p printer) steps(results []*result) {
	var cpu time.Duration
	p.printf("\n%-12s %-6s %8s %8s %6s %8s %6s %6s %7s   (a test with subtests is counted by them)\n",
		"STEP", "", "SECONDS", "CPU", "CORES", "PACKAGES", "TESTS", "FAILED", "SKIPPED")
	line := func(name, outcome string, took, cpu time.Duration, packages int, c counts) {
		cores := 0.0
		if took > 0 {
			cores = cpu.Seconds() / took.Seconds()
		}
		p.printf("%-12s %-6s %8.1f %8.1f %6.1f %8d %6d %6d %7d\n", name, outcome, took.Seconds(), cpu.Seconds(), cores, packages, c.run(), c.failed, c.skipped)
	}
	var packages int
	var sum counts
	for _, r := range results {
		outcome := "ok"
		if r.failed() {
			outcome = "FAILED"
		}
		line(r.step.name, outcome, r.took, r.cpu, len(r.packages), r.counts())
		cpu, packages = cpu+r.cpu, packages+len(r.packages)
		sum.add(r.counts())
	}
	line("all", "", time.Since(p.begin), cpu, packages, sum)
}

// packages prints a line for each package that has tests.
func (p printer) packages(results []*result) {
	type line struct {
		step string
		*testedPackage
	}
	var all []line
	width := len("PACKAGE")
	for _, r := range results {
		for _, t := range r.packages {
			if t.outcome != "skip" {
				all = append(all, line{r.step.name, t})
				width = max(width, len(t.name))
			}
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b line) int { return cmp.Compare(b.seconds, a.seconds) })
	p.printf("\n%-12s %-*s %8s %6s %6s %7s\n", "STEP", width, "PACKAGE", "SECONDS", "TESTS", "FAILED", "SKIPPED")
	for _, l := range all {
		cached := ""
		if l.cached {
			cached = "  cached"
		}
		p.printf("%-12s %-*s %8.1f %6d %6d %7d%s\n", l.step, width, l.name, l.seconds, l.run(), l.failed, l.skipped, cached)
	}
}

// skipped prints why tests were skipped, and in which packages, the most frequent reason first.
func (p printer) skipped(results []*result) {
	tests, where := map[string]int{}, map[string][]string{}
	for _, r := range results {
		for _, t := range r.packages {
			for reason, n := range t.reasons {
				tests[reason] += n
				where[reason] = append(where[reason], r.step.name+" "+t.name)
			}
		}
	}
	if len(tests) == 0 {
		return
	}
	p.printf("\nSKIPPED\n")
	mostFirst := func(a, b string) int { return cmp.Or(cmp.Compare(tests[b], tests[a]), strings.Compare(a, b)) }
	for _, reason := range slices.SortedFunc(maps.Keys(tests), mostFirst) {
		packages := slices.Sorted(slices.Values(where[reason]))
		more := ""
		if n := len(packages) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		p.printf("%6d  %s (%s%s)\n", tests[reason], reason, packages[0], more)
	}
}
