//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script runs a shell script as a step.
func script(ctx context.Context, t *testing.T, text string) *result {
	t.Helper()
	c := commands{logs: t.TempDir(), grace: 200 * time.Millisecond, command: func(ctx context.Context, _ step) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", text)
	}}
	r := c.run(ctx, step{name: "script", plain: true})
	log, err := os.ReadFile(filepath.Join(c.logs, "script"))
	if err != nil || len(bytes.SplitAfter(log, []byte("\n")))-1 != len(r.plain) {
		t.Errorf("the log has other lines than the result (error: %v):\n%s", err, log)
	}
	return r
}

// TestOutput wants all that a step has written, on both streams, to be shown if it fails.
func TestOutput(t *testing.T) {
	r := script(t.Context(), t, "echo out; echo err >&2; printf 'no end'; exit 3")
	if shown := r.failures(); !r.failed() || !strings.Contains(shown, "out\n") || !strings.Contains(shown, "err\n") ||
		!strings.Contains(shown, "no end\n") || !strings.Contains(shown, "exit status 3") {
		t.Errorf("failed: %v, shown:\n%s", r.failed(), shown)
	}
	if r = script(t.Context(), t, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"); r.failed() || r.cpu == 0 || r.took < r.cpu/2 {
		t.Errorf("failed: %v, %v, %v of a processor", r.failed(), r.took, r.cpu)
	}
}

// TestLeftBehind wants a step whose processes outlive it to fail, and them to end.
func TestLeftBehind(t *testing.T) {
	r := script(t.Context(), t, "sleep 1000 & echo $!")
	if !r.failed() {
		t.Error("it did not fail")
	}
	awaitEnd(t, strings.TrimSpace(r.plain[0]))
}

// TestSignals wants all processes of a step to end when this program is told to, even those that ignore it.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			ctx, stop := signal.NotifyContext(t.Context(), signals...)
			defer stop()
			ready := filepath.Join(t.TempDir(), "ready")
			go func() {
				for _, err := os.Stat(ready); err != nil && ctx.Err() == nil; _, err = os.Stat(ready) {
					<-time.After(time.Millisecond)
				}
				_ = syscall.Kill(os.Getpid(), sig)
			}()
			r := script(ctx, t, "sleep 1000 & echo $!; (trap '' INT; echo >"+ready+".trap; exec sleep 1001) & echo $!; "+
				"until [ -e "+ready+".trap ]; do :; done; echo >"+ready+"; wait")
			if !r.failed() || len(r.plain) != 2 {
				t.Fatalf("failed: %v, lines: %q", r.failed(), r.plain)
			}
			for _, line := range r.plain {
				awaitEnd(t, strings.TrimSpace(line))
			}
		})
	}
}

// awaitEnd wants a process to end, at least as a zombie that nobody has waited for.
func awaitEnd(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %s runs on", pid)
}

// recipe returns what make would run.
func recipe(t *testing.T, arguments ...string) string {
	t.Helper()
	if _, err := os.ReadFile("../../Makefile"); err != nil { // also makes cached results depend on it
		t.Fatal(err)
	}
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-n"}, arguments...)...)
	cmd.Dir, cmd.Env = "../..", slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") })
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// TestMakeHasTheSteps checks that each step is a target, and reports its tests unless it has none.
func TestMakeHasTheSteps(t *testing.T) {
	for _, set := range sets {
		for _, s := range set {
			t.Run(s.name, func(t *testing.T) {
				text := recipe(t, append([]string{"GOTEST=report -json"}, s.make...)...)
				if strings.Contains(text, "-json") == s.plain {
					t.Errorf("plain is %v, and the recipe is\n%s", s.plain, text)
				}
			})
		}
	}
}

// TestNoTestIsLeftOut checks that the steps that divide the module's tests between them run all of
// them: each package belongs to one, or two divide it by the same pattern.
func TestNoTestIsLeftOut(t *testing.T) {
	out, err := exec.Command("go", "list", "sluice/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string][]string{} // by package, the flags that select tests
	selects := regexp.MustCompile(`-(run|skip) '([^']*)'`)
	for line := range strings.Lines(recipe(t, "test-go", "test-modes", "test-packets", "test-daemon")) {
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "sluice/") {
				runs[word] = append(runs[word], strings.Join(selects.FindAllString(line, -1), " "))
			}
		}
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		how := runs[pkg]
		slices.Sort(how)
		all := slices.Equal(how, []string{""})
		divided := len(how) == 2 && strings.HasPrefix(how[0], "-run ") && how[1] == strings.Replace(how[0], "-run ", "-skip ", 1)
		if !all && !divided {
			t.Errorf("of %s, tests are selected by %q: either all of them, or the same pattern once with -run and once with -skip", pkg, how)
		}
		delete(runs, pkg)
	}
	if len(runs) > 0 {
		t.Errorf("these packages do not exist: %v", runs)
	}
}
