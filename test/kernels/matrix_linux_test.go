package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const output = `guest: Linux 6.1.0-54-cloud-amd64
=== RUN   TestA
=== RUN   TestA/one
=== PAUSE TestA/one
=== RUN   TestA/two
    a_test.go:7: the kernel has no SCTP sockets
=== CONT  TestA/one
    a_test.go:9: it is wrong
--- FAIL: TestA (0.00s)
    --- FAIL: TestA/one (0.00s)
    --- SKIP: TestA/two (0.00s)
=== RUN   TestB
--- PASS: TestB (0.00s)
FAIL
`

func TestReadCountsWhatWasPlayed(t *testing.T) {
	want := cell{
		Release: "6.1.0-54-cloud-amd64", Passed: 1, Failed: []string{"TestA: ", "TestA/one: it is wrong"},
		Skipped: []string{"TestA/two: the kernel has no SCTP sockets"},
	}
	if d := cmp.Diff(want, parseOutput(output)); d != "" {
		t.Errorf("cell mismatch (-want +got):\n%s", d)
	}
}

func TestProblems(t *testing.T) {
	skipped := func(why string) []string { return []string{"TestA: " + why} }
	for name, c := range map[string]struct {
		cell cell
		want string
	}{
		"all passed":                    {cell{Kernel: "6.1", Passed: 1}, ""},
		"no tests":                      {cell{Kernel: "6.1"}, "no tests ran"},
		"a failure":                     {cell{Kernel: "6.1", Passed: 1, Failed: []string{"TestA"}}, "1 tests failed"},
		"a guest that died":             {cell{Kernel: "6.1", Passed: 1, Error: "panic"}, "panic"},
		"skipped, Debian's kernel":      {cell{Kernel: "6.1", Skipped: skipped("the kernel has no IPVS")}, "skipped, although"},
		"skipped, our own kernel":       {cell{Kernel: host, Skipped: skipped("this kernel has no IPVS")}, ""},
		"skipped, the mode cannot":      {cell{Kernel: "6.1", Skipped: skipped("no SCTP connection can be carried: sockets of the kernel cannot")}, ""},
		"skipped, the kernel, in words": {cell{Kernel: "6.1", Skipped: skipped("this kernel has no IPVS")}, "skipped, although"},
	} {
		err := c.cell.err()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestAPartIsTheSameForASeed(t *testing.T) {
	s := suites[len(suites)-1]
	first, err := (&runner{share: 10, seed: 3}).chooseParts(s)
	if err != nil {
		t.Fatal(err)
	}
	second, err := (&runner{share: 10, seed: 3}).chooseParts(s)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("the part is another the second time:\n%s", d)
	}
	other, err := (&runner{share: 10, seed: 4}).chooseParts(s)
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(first, other) {
		t.Error("another seed gives the same part")
	}
}

// TestTheMatrixKeepsWhatWasPlayed: a cell replaces the one of the same suite and kernel,
// all others stay, and no count is lost with the names that are not listed.
func TestTheMatrixKeepsWhatWasPlayed(t *testing.T) {
	to := filepath.Join(t.TempDir(), "matrix.md")
	skipped := slices.Repeat([]string{"TestA: why"}, maxListed+2)
	for _, c := range []cell{
		{Suite: "lab", Kernel: "6.1", Passed: 1, Commit: "old"},
		{Suite: "lab", Kernel: "5.10", Passed: 2, Skipped: skipped, Commit: "old"},
		{Suite: "lab", Kernel: "6.1", Passed: 3, Commit: "new"},
	} {
		if err := writeMatrix(to, c); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 2 pass, 7 skipped (0s)<br>old | 3 pass (0s)<br>new |", "\n- and 2 more\n", "\n| ebpf | too old | too old | not run |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("%q is not in the matrix:\n%s", want, page)
		}
	}
	if strings.Contains(string(page), "1 pass") {
		t.Errorf("what was replaced is still there:\n%s", page)
	}
}
