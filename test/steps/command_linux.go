package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"sluice/test/programs"
)

// commands runs the commands of steps.
type commands struct {
	logs    string        // directory for the whole output of each
	grace   time.Duration // how long a step may take to end after an interrupt
	command func(context.Context, step) *exec.Cmd
}

// makeCommand returns the command of a step. A step after the one that builds programs uses them, if
// that one runs too.
func makeCommand(ctx context.Context, root string, s step, chosen []step) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "make", slices.Concat([]string{"--no-print-directory", "GOTEST=go test -json"}, s.make)...)
	cmd.Dir = root
	if slices.Contains(s.after, builds) && slices.ContainsFunc(chosen, func(o step) bool { return o.name == builds }) {
		cmd.Env = append(os.Environ(), programs.Variable+"="+filepath.Join(root, ".cache", "programs"))
	}
	return cmd
}

// run runs a step to its end. All of its processes are in a process group of their own, so that
// none is left, not even after an interrupt.
func (c commands) run(ctx context.Context, s step) *result {
	r := &result{step: s}
	begin := time.Now()
	defer func() { r.took = time.Since(begin) }()
	log, err := os.Create(filepath.Join(c.logs, s.name))
	if err != nil {
		r.broken = err.Error()
		return r
	}
	var mu sync.Mutex
	line := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		r.read(text)
		_, _ = log.WriteString(text) // a full disk must not end the tests
	}
	stdout, stderr := &lines{each: line}, &lines{each: line}
	cmd := c.command(ctx, s)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, stderr, c.grace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group := func(sig syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, sig) }
	cmd.Cancel = func() error { return group(syscall.SIGINT) }
	if err := cmd.Start(); err != nil {
		r.broken = errors.Join(err, log.Close()).Error()
		return r
	}
	err = cmd.Wait()
	_ = group(syscall.SIGKILL) // usually nobody is left
	stdout.flush()
	stderr.flush()
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r.end(errors.Join(err, log.Close()))
	return r
}

// lines passes on what is written to it line by line.
type lines struct {
	each func(string)
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		l.each(string(l.rest[:i+1]))
		l.rest = l.rest[i+1:]
	}
}

// flush passes on a last line without an end.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.each(string(l.rest) + "\n")
		l.rest = nil
	}
}
