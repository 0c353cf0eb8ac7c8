package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// phase is which tests run.
type phase struct {
	name string
	args []string
}

// packetTables are the tests that the quick tests leave out: they send packets of all kinds.
const packetTables = "^Test(Conformance|Bridged)|^TestRandom(Legacy|Untracked)?$|^TestBalancing$"

var (
	quick      = phase{"quick tests", []string{"-short", "-skip", packetTables}}
	packets    = phase{"packet tables", []string{"-run", packetTables}}
	everything = phase{"all tests", nil}
)

// tester runs tests in a tree.
type tester struct {
	root    string
	timeout time.Duration
	passes  map[failure]bool // whether a test passes without a mutation, once known
}

// failure is a test that failed, or during which the process ended.
type failure struct{ pkg, test string }

// result is what tests say of a mutation.
type result struct {
	by      failure // zero if no test noticed
	invalid string  // why the result says nothing
	took    time.Duration
}

func (r result) caught() bool { return r.by != failure{} && r.invalid == "" }

// try makes a mutation and returns the results of the phases, up to the first that notices it.
func (t *tester) try(ctx context.Context, m mutation, scratch string, phases []phase) (results []result, err error) {
	overlay, err := m.overlay(t.root, scratch)
	if err != nil {
		return nil, err
	}
	for _, p := range phases {
		r := t.run(ctx, m, overlay, p)
		if results = append(results, r); r.caught() {
			break
		}
	}
	return results, nil
}

// run runs the tests of one phase that may notice a mutation until one does.
func (t *tester) run(ctx context.Context, m mutation, overlay string, p phase) (r result) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	for _, pkg := range m.packages {
		r = t.test(ctx, pkg, append([]string{"-overlay", overlay}, p.args...)...)
		if r.invalid != "" {
			return r
		}
		if r.caught() {
			if !t.passesAlone(ctx, r.by) {
				r.invalid = "the test fails without the mutation, too"
			}
			return r
		}
	}
	return r
}

// passesAlone reports whether a test passes without a mutation.
func (t *tester) passesAlone(ctx context.Context, f failure) bool {
	passes, known := t.passes[f]
	if !known {
		var names []string
		for name := range strings.SplitSeq(f.test, "/") {
			names = append(names, "^"+regexp.QuoteMeta(name)+"$")
		}
		// A test may fail only because this is not the whole of it: then the inner one does not.
		r := t.test(ctx, f.pkg, "-run", strings.Join(names, "/"))
		passes = r.by.test != f.test && r.invalid == ""
		t.passes[f] = passes
	}
	return passes
}

// test runs the tests of a package up to the first failure.
func (t *tester) test(ctx context.Context, pkg string, args ...string) result {
	args = append([]string{"test", "-json", "-failfast", "-vet=off", "-count", "1", "-timeout", t.timeout.String()}, args...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = t.root
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return result{invalid: err.Error()}
	}
	r := read(pkg, out)
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		r.invalid = err.Error()
	} else if err != nil && r == (result{}) {
		r.invalid = fmt.Sprintf("go test: %v, but no test failed", err)
	}
	return r
}

// event is a line of the output of go test -json.
type event struct {
	Action, Test string
	FailedBuild  string
}

// read returns the first failure that the output of go test has. The first test that fails is the
// innermost one.
func read(pkg string, out io.Reader) (r result) {
	running := "?"
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // what the go command says itself
		}
		switch {
		case e.Action == "build-fail" || e.FailedBuild != "":
			r.invalid = "the mutation does not compile"
		case e.Action == "run":
			running = e.Test
		case e.Action == "fail" && r.by == failure{}:
			r.by = failure{pkg, cmp.Or(e.Test, running)}
		}
	}
	return r
}
