//go:build linux

package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// output is what go test -json prints, shortened: a package with a table of which one case fails,
// a cached one, one that is not built, and one whose program ends during a test.
const output = `make: a line of make
{"Action":"start","Package":"p/table"}
{"Action":"run","Package":"p/table","Test":"TestTable"}
{"Action":"output","Package":"p/table","Test":"TestTable","Output":"=== RUN   TestTable\n"}
{"Action":"run","Package":"p/table","Test":"TestTable/a/b"}
{"Action":"output","Package":"p/table","Test":"TestTable/a/b","Output":"    table_test.go:9: fine\n"}
{"Action":"pass","Package":"p/table","Test":"TestTable/a/b","Elapsed":0.1}
{"Action":"run","Package":"p/table","Test":"TestTable/c"}
{"Action":"output","Package":"p/table","Test":"TestTable/c","Output":"    table_test.go:9: wrong\n"}
{"Action":"fail","Package":"p/table","Test":"TestTable/c","Elapsed":0.1}
{"Action":"fail","Package":"p/table","Test":"TestTable","Elapsed":0.1}
{"Action":"run","Package":"p/table","Test":"TestSkips"}
{"Action":"output","Package":"p/table","Test":"TestSkips","Output":"    table_test.go:12: first\n"}
{"Action":"output","Package":"p/table","Test":"TestSkips","Output":"    table_test.go:13: no SCTP sockets\n"}
{"Action":"output","Package":"p/table","Test":"TestSkips","Output":"--- SKIP: TestSkips (0.00s)\n"}
{"Action":"skip","Package":"p/table","Test":"TestSkips","Elapsed":0}
{"Action":"output","Package":"p/table","Output":"FAIL\tp/table\t1.5s\n"}
{"Action":"fail","Package":"p/table","Elapsed":1.5}
{"Action":"start","Package":"p/cached"}
{"Action":"run","Package":"p/cached","Test":"TestOne"}
{"Action":"output","Package":"p/cached","Test":"TestOne","Output":"    one_test.go:9: silent\n"}
{"Action":"pass","Package":"p/cached","Test":"TestOne","Elapsed":1}
{"Action":"output","Package":"p/cached","Output":"ok  \tp/cached\t(cached)\n"}
{"Action":"pass","Package":"p/cached","Elapsed":0.01}
{"ImportPath":"p/broken [p/broken.test]","Action":"build-output","Output":"./x.go:3: undefined: y\n"}
{"ImportPath":"p/broken [p/broken.test]","Action":"build-fail"}
{"Action":"start","Package":"p/broken"}
{"Action":"output","Package":"p/broken","Output":"FAIL\tp/broken [build failed]\n"}
{"Action":"fail","Package":"p/broken","Elapsed":0,"FailedBuild":"p/broken [p/broken.test]"}
{"Action":"start","Package":"p/none"}
{"Action":"output","Package":"p/none","Output":"?   \tp/none\t[no test files]\n"}
{"Action":"skip","Package":"p/none","Elapsed":0}
{"Action":"start","Package":"p/exits"}
{"Action":"run","Package":"p/exits","Test":"TestExits"}
{"Action":"output","Package":"p/exits","Test":"TestExits","Output":"panic: oh\n"}
`

func resultOf(output string, s step, err error) *result {
	r := &result{step: s}
	for line := range strings.Lines(output) {
		r.read(line)
	}
	r.end(err)
	return r
}

// TestResult reads the output of a step, counts its tests and shows all of what failed and nothing else.
func TestResult(t *testing.T) {
	r := resultOf(output, step{name: "go"}, errors.New("exit status 2"))
	type line struct {
		Name, Outcome           string
		Seconds                 float64
		Cached                  bool
		Passed, Failed, Skipped int
	}
	var got []line
	for _, p := range r.packages {
		got = append(got, line{p.name, p.outcome, p.seconds, p.cached, p.passed, p.failed, p.skipped})
	}
	want := []line{
		{Name: "p/table", Outcome: "fail", Seconds: 1.5, Passed: 1, Failed: 1, Skipped: 1},
		{Name: "p/cached", Outcome: "pass", Seconds: 0.01, Cached: true, Passed: 1},
		{Name: "p/broken", Outcome: "fail", Failed: 1},
		{Name: "p/none", Outcome: "skip"},
		{Name: "p/exits", Outcome: "fail", Failed: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages mismatch (-want +got):\n%s", diff)
	}
	shown := r.failures()
	for _, want := range []string{"table_test.go:9: wrong", "FAIL\tp/table", "undefined: y", "panic: oh", "its tests did not end"} {
		if strings.Count(shown, want) != 1 {
			t.Errorf("%q is shown %d times, want once, in:\n%s", want, strings.Count(shown, want), shown)
		}
	}
	for _, no := range []string{"9: fine", "silent", "no SCTP", "cached", "line of make"} {
		if strings.Contains(shown, no) {
			t.Errorf("%q is shown, although it has not failed", no)
		}
	}
	if diff := cmp.Diff(map[string]int{"no SCTP sockets": 1}, r.packages[0].reasons); diff != "" {
		t.Errorf("reasons mismatch (-want +got):\n%s", diff)
	}
}

// TestFailures wants a step to fail, and to say why, whatever went wrong.
func TestFailures(t *testing.T) {
	const passes = `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p","Elapsed":1}` + "\n"
	const empty = `{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s [no tests to run]\n"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
	const skips = `{"Action":"skip","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
	const after = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/b"}
{"Action":"pass","Package":"p","Test":"TestA/b"}
{"Action":"output","Package":"p","Test":"TestA","Output":"in its cleanup\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`
	for _, c := range []struct {
		name, output string
		plain        bool
		err          error
		want         string // of what is shown; empty means that it succeeded
	}{
		{"passes", passes, false, nil, ""},
		{"a command fails after its tests", passes + "oops\n", false, errors.New("exit status 2"), "oops"},
		{"no output", "", false, nil, "it ran no tests"},
		{"no tests to run", empty, false, nil, "it ran no tests"},
		{"nothing but skipped tests", skips, false, nil, "it ran no tests"},
		{"no go test is expected", "done\n", true, nil, ""},
		{"no go test is expected, and it fails", "not gofumpt-clean\n", true, errors.New("exit status 1"), "not gofumpt-clean"},
		{"a test fails after its subtests", after, false, errors.New("exit status 1"), "in its cleanup"},
		{"exit status 0 of a failed test", after, false, nil, "in its cleanup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := resultOf(c.output, step{name: "s", plain: c.plain}, c.err)
			if r.failed() != (c.want != "") {
				t.Errorf("failed: %v, want %v", r.failed(), c.want != "")
			}
			if shown := r.failures(); c.want != "" && !strings.Contains(shown, c.want) {
				t.Errorf("shown is\n%s\nwant %q", shown, c.want)
			}
		})
	}
}

// TestReport prints all of it.
func TestReport(t *testing.T) {
	var out strings.Builder
	p := printer{begin: time.Now(), out: &out, logs: "/logs"}
	ok := resultOf("", step{name: "demo", plain: true}, nil)
	bad := resultOf("a line\n", step{name: "lint", plain: true}, errors.New("exit status 1"))
	tests := resultOf(output, step{name: "go"}, nil)
	tests.took, tests.cpu = 2*time.Second, 3*time.Second
	for _, r := range []*result{ok, bad, tests} {
		p.ended(r)
	}
	p.tables([]*result{ok, bad, tests})
	for _, want := range []string{
		"lint         FAILED after 0.0 s: 0 passed, 0 failed, 0 skipped\na line\nlint: exit status 1\nlint: all of its output is in /logs/lint\n",
		"\ngo           FAILED      2.0      3.0    1.5        5      5      3       1\n",
		"\ngo           p/table       1.5      2      1       1\ngo           p/cached      0.0      1      0       0  cached\n",
		"\nSKIPPED\n     1  no SCTP sockets (go p/table)\n",
		"\n\n2 passed, 4 failed, 1 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
