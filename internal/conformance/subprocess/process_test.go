package subprocess_test

import (
	"os/exec"
	"syscall"
	"testing"

	"sluice/internal/conformance/subprocess"
)

// TestProcess follows a program that says two words, by two ways, and ends when it
// is told to.
func TestProcess(t *testing.T) {
	p, err := subprocess.Start(exec.Command("sh", "-c", `echo one; echo two >&2; read line; exit 3`), func(cmd *exec.Cmd) error {
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = in.Close() })
		return cmd.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	for p.LoggedAt("two").IsZero() {
		select {
		case <-p.Done:
			t.Fatalf("it has ended; it said %q", p.Log())
		default:
		}
	}
	if p.LoggedAt("one").After(p.LoggedAt("two")) || !p.LoggedAt("three").IsZero() || p.Log() != "one\ntwo\n" {
		t.Errorf("%q; one at %v, two at %v, three at %v", p.Log(), p.LoggedAt("one"), p.LoggedAt("two"), p.LoggedAt("three"))
	}
	if code := p.End(syscall.SIGKILL); code != -1 || p.Cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with code %d, %v", code, p.Cmd.ProcessState)
	}
}
