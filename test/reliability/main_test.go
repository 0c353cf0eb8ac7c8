package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/conformance/reliability"
)

// TestPage: the page has what the outputs told last, adds up what several tests
// told of one fault, and keeps what was not played again.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "reliability.md")
	write := func(commit, text string) {
		t.Helper()
		output := filepath.Join(dir, "output")
		if err := os.WriteFile(output, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := run(page, commit, false, []string{output}); err != nil {
			t.Fatal(err)
		}
	}
	write("a1", `
    a_test.go:1: reliability: {"Fault":"killed","Mode":"nftables","Tried":2,"Requests":1000,"Repairs":[3000000,1500000000],"Kernel":"6.18"}
    a_test.go:1: reliability: {"Fault":"killed","Mode":"iptables","Tried":1,"Requests":5,"Failed":1,"Kernel":"6.1"}
`)
	write("b2", `
    a_test.go:1: reliability: {"Fault":"killed","Mode":"nftables","Tried":1,"Requests":1000,"Repairs":[4000000],"Kernel":"6.18"}
    b_test.go:1: reliability: {"Fault":"killed","Mode":"nftables","Tried":1,"Requests":234,"Repairs":[5000000],"Note":"a|b","Kernel":"6.18"}
`)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| fault | nftables |\n|---|---|\n| killed | 2 times<br>0 of 1,234 failed<br>correct after 5ms, at most 5ms |\n",
		"| killed | once<br>1 of 5 failed |",
		"## What did not reach zero\n\n- killed: iptables, Linux 6.1: the cause is unknown\n",
		"## Notes\n\n- killed: nftables, Linux 6.18: a\\|b\n",
		"commits a1, b2.",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if i, j := strings.Index(string(text), "## Linux 6.18"), strings.Index(string(text), "## Linux 6.1\n"); i > j {
		t.Error("the newest kernel does not come first")
	}
	if err := run(page, "", true, nil); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(page, append(text, '!'), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(page, "", true, nil); err == nil {
		t.Error("a page that was changed by hand passes")
	}
}

// TestThemes: what was played by version of Kubernetes has tables of its own.
func TestThemes(t *testing.T) {
	text := markdown([]cell{
		{reliability.Result{Fault: "policy", Mode: "ebpf", Tried: 47, Kernel: "6.18", Kubernetes: "1.36"}, "a"},
		{reliability.Result{Fault: "killed", Mode: "ebpf", Tried: 2, Kernel: "6.18"}, "a"},
	})
	for want, times := range map[string]int{
		"### Kubernetes 1.36\n": 1, "| policy | 47 cases pass |": 1, "| policy": 1, "| killed": 1,
	} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("%q is there %d times, want %d:\n%s", want, n, times, text)
		}
	}
}
