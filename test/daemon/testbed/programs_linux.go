package testbed

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sluice/internal/conformance/lab"
)

// Run runs a program on the node and returns its output. It must succeed.
func (b *Testbed) Run(program string, args ...string) string {
	b.T.Helper()
	var out, problems strings.Builder
	if code := b.run(b.Lab.Node(), exec.Command(program, args...), &out, &problems); code != 0 {
		b.T.Fatalf("run %s %q: exit code %d\n%s%s", program, args, code, &out, &problems)
	}
	return out.String()
}

// RunIn is [Testbed.Run] in a pod.
func (b *Testbed) RunIn(pod *lab.Host, program string, args ...string) {
	b.T.Helper()
	var out strings.Builder
	if code := b.run(pod, exec.Command(program, args...), &out, &out); code != 0 {
		b.T.Fatalf("run %s %q in %s: exit code %d\n%s", program, args, pod.Name, code, &out)
	}
}

// Call runs a program on the node and returns what it said, also of errors, and its exit code.
func (b *Testbed) Call(program string, args ...string) (said string, code int) {
	b.T.Helper()
	var out strings.Builder
	code = b.run(b.Lab.Node(), exec.Command(program, args...), &out, &out)
	return out.String(), code
}

// Sluice runs a command of the daemon's binary that asks the daemon, and returns what it said and
// its exit code.
func (b *Testbed) Sluice(args ...string) (said string, code int) {
	b.T.Helper()
	return b.Call(Binary(b.T), append(args, "--socket", b.Socket)...)
}

// TraceClient has sluice explain follow a packet of the client's to [ClusterIP], which it sends, and
// returns what the command said of the Service web and its exit code.
func (b *Testbed) TraceClient() (said string, code int) {
	b.T.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		said, code = b.Sluice("explain", "default/web", "--from", ClientIP.String(), "--trace=10s")
	}()
	Eventually(b.T, "a trace of the client's packet", func() bool {
		b.Ask(ClientIP, ClusterIP)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	return said, code
}

func (b *Testbed) run(in *lab.Host, cmd *exec.Cmd, out, problems io.Writer) (code int) {
	b.T.Helper()
	cmd.Stdout, cmd.Stderr = out, problems
	if err := in.Start(cmd); err != nil {
		b.T.Fatal(err)
	}
	_ = cmd.Wait() // the exit code tells
	return cmd.ProcessState.ExitCode()
}

// WrapProgram puts a script before one of the host's programs, for the daemon only.
// The script finds the program itself as $REAL.
func (b *Testbed) WrapProgram(program, script string) func(*exec.Cmd) {
	b.T.Helper()
	real, err := exec.LookPath(program)
	if err != nil {
		b.T.Fatal(err)
	}
	dir := b.T.TempDir()
	text := "#!/bin/sh\nREAL=" + real + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
		b.T.Fatal(err)
	}
	return func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	}
}
