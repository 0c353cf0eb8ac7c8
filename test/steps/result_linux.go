package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// result is what a step has come to.
type result struct {
	step      step
	took, cpu time.Duration
	packages  []*testedPackage // in the order in which they began
	builds    map[string][]string
	plain     []string // lines that are not of a test
	broken    string   // why the step failed, unless it is only because of tests
}

// testedPackage is one run of the tests of a package.
type testedPackage struct {
	name    string
	seconds float64
	outcome string // the last action of go test -json: pass, fail or skip; empty if it did not end
	cached  bool
	build   string // key of result.builds, if it could not be built
	output  []string
	tests   []*test // in the order in which they began
	byName  map[string]*test
	counts
	reasons map[string]int // why tests were skipped
}

// counts are numbers of tests. A test with subtests counts only if its result is not that of a
// subtest: it failed itself, or was skipped later.
type counts struct{ passed, failed, skipped int }

func (c *counts) add(o counts) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

func (c counts) run() int { return c.passed + c.failed }

// test is a test or subtest.
type test struct {
	name          string
	parent        *test
	outcome       string
	output        []string
	hasSubtests   bool
	subtestFailed bool
}

// event is a line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of what is being built
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// read takes a line of the output: an event, or text of any other program.
func (r *result) read(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		r.plain = append(r.plain, line)
		return
	}
	switch {
	case e.Package == "" && e.Action == "build-output":
		if r.builds == nil {
			r.builds = map[string][]string{}
		}
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case e.Package != "":
		r.running(e.Package).take(e)
	}
}

// running returns the run of a package that has not ended, or a new one.
func (r *result) running(name string) *testedPackage {
	for _, p := range r.packages {
		if p.name == name && p.outcome == "" {
			return p
		}
	}
	p := &testedPackage{name: name}
	r.packages = append(r.packages, p)
	return p
}

// take takes an event of the package or of one of its tests.
func (p *testedPackage) take(e event) {
	if e.Test != "" {
		p.find(e.Test).take(e)
		return
	}
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
		p.cached = p.cached || strings.HasPrefix(e.Output, "ok ") && strings.HasSuffix(e.Output, "\t(cached)\n")
	case "pass", "fail", "skip":
		p.seconds, p.build = e.Elapsed, e.FailedBuild
		p.end(e.Action)
	}
}

// find returns a test, which is new at its first event.
func (p *testedPackage) find(name string) *test {
	if t, ok := p.byName[name]; ok {
		return t
	}
	t := &test{name: name, parent: p.parent(name)}
	if t.parent != nil {
		t.parent.hasSubtests = true
	}
	if p.byName == nil {
		p.byName = map[string]*test{}
	}
	p.tests, p.byName[name] = append(p.tests, t), t
	return t
}

// parent returns the test that a subtest is of. The name of a subtest may contain slashes, too.
func (p *testedPackage) parent(name string) *test {
	for i := strings.LastIndex(name, "/"); i >= 0; i = strings.LastIndex(name[:i], "/") {
		if t, ok := p.byName[name[:i]]; ok {
			return t
		}
	}
	return nil
}

func (t *test) take(e event) {
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass", "fail", "skip":
		t.outcome = e.Action
		if e.Action == "pass" {
			t.output = nil
		}
	}
}

// end counts the tests. A test that has not ended, because the program did, has failed.
func (p *testedPackage) end(outcome string) {
	p.outcome = outcome
	for _, t := range p.tests {
		if t.outcome == "" {
			t.outcome = "fail"
		}
		if t.parent != nil && t.outcome == "fail" {
			t.parent.subtestFailed = true
		}
	}
	for _, t := range p.tests {
		switch {
		case t.outcome == "skip":
			p.skipped++
			if p.reasons == nil {
				p.reasons = map[string]int{}
			}
			p.reasons[reason(t.output)]++
		case t.outcome == "fail" && !t.subtestFailed:
			p.failed++
		case t.outcome == "pass" && !t.hasSubtests:
			p.passed++
		}
	}
	if outcome == "fail" && p.failed == 0 {
		p.failed = 1 // it was not built, or its TestMain failed
	}
}

var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)\n`)

// reason returns why a test was skipped, which is the last that it logged.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := logged.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "no reason given"
}

// end concludes the step, whose command ended with err.
func (r *result) end(err error) {
	for _, p := range r.packages {
		if p.outcome == "" {
			p.output = append(p.output, "its tests did not end\n")
			p.end("fail")
		}
	}
	switch c := r.counts(); {
	case err != nil && c.failed == 0:
		r.broken = err.Error()
	case err == nil && !r.step.plain && c.run() == 0:
		r.broken = "it ran no tests"
	}
}

// counts are those of all packages.
func (r *result) counts() (c counts) {
	for _, p := range r.packages {
		c.add(p.counts)
	}
	return c
}

func (r *result) failed() bool { return r.broken != "" || r.counts().failed > 0 }

// maxPlain is how many of a step's last lines are shown if it fails otherwise than by tests.
const maxPlain = 100

// failures is the output of what failed: tests, packages, builds, and the end of all other output.
func (r *result) failures() string {
	var b strings.Builder
	shown := map[string]bool{}
	for _, p := range r.packages {
		if p.outcome != "fail" {
			continue
		}
		for _, t := range p.tests {
			if t.outcome == "fail" {
				fmt.Fprintf(&b, "%s", strings.Join(t.output, ""))
			}
		}
		fmt.Fprintf(&b, "%s", strings.Join(p.output, ""))
		if p.build != "" && !shown[p.build] {
			shown[p.build] = true
			fmt.Fprintf(&b, "%s", strings.Join(r.builds[p.build], ""))
		}
	}
	if r.broken != "" || b.Len() == 0 {
		if cut := len(r.plain) - maxPlain; cut > 0 {
			fmt.Fprintf(&b, "(%d lines before)\n", cut)
		}
		fmt.Fprintf(&b, "%s", strings.Join(r.plain[max(0, len(r.plain)-maxPlain):], ""))
	}
	if r.broken != "" {
		fmt.Fprintf(&b, "%s: %s\n", r.step.name, r.broken)
	}
	return b.String()
}
