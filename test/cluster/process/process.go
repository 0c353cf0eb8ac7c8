package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
)

// stopTimeout is how long a process may take to stop after SIGTERM.
const stopTimeout = 10 * time.Second

// Spec describes a program to run.
type Spec struct {
	Name string // of the log file; must be new
	Dir  string // for the log file
	Path string
	Args []string
	Env  []string // in addition to the test's own environment

	// NoSignalHandler says that the program does not handle SIGTERM, so that the kernel ends it.
	NoSignalHandler bool
}

// Process is a running program.
type Process struct {
	Name string

	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // result of Wait; valid after done is closed

	noSignalHandler bool
	stopRequested   bool
	stopped         bool // and waited for
}

// Start starts a program inside a host. It ends with the test, even if the test is killed.
func Start(h *lab.Host, s Spec) (*Process, error) {
	p := &Process{
		Name: s.Name, log: filepath.Join(s.Dir, s.Name+".log"), done: make(chan struct{}), noSignalHandler: s.NoSignalHandler,
	}
	out, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", s.Name, err)
	}
	defer out.Close() // the process has a copy
	p.cmd = exec.Command(s.Path, s.Args...)
	p.cmd.Env = append(os.Environ(), s.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := h.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Context returns a context that ends when the process does, with the process's result as the
// cause. The parent must end eventually.
func (p *Process) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		select {
		case <-ctx.Done():
		case <-p.done:
			cancel(p.Ended())
		}
	}()
	return ctx
}

// Ended returns nil while the process runs, and afterwards an error that says how it ended.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %v; its last lines:\n%s", p.Name, p.err, p.Tail(20))
	default:
		return nil
	}
}

// Wait waits for the process to end by itself.
func (p *Process) Wait() error {
	<-p.done
	if p.err != nil {
		return fmt.Errorf("run %s: %w; its last lines:\n%s", p.Name, p.err, p.Tail(20))
	}
	return nil
}

// RequestStop sends SIGTERM, once, and does not wait. It returns an error if the process had
// already ended.
func (p *Process) RequestStop() error {
	if p.stopRequested {
		return nil
	}
	p.stopRequested = true
	if err := p.Ended(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	return nil
}

// Stop sends SIGTERM and waits for the process; a second call does nothing. It returns an error if
// the process had already ended, does not stop in time or fails.
func (p *Process) Stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	if err := p.RequestStop(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), traffic.Scaled(stopTimeout))
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("stop %s: killed after %v; its last lines:\n%s", p.Name, stopTimeout, p.Tail(20))
	}
	if p.noSignalHandler && p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		return nil
	}
	if p.err != nil {
		return fmt.Errorf("stop %s: %w; its last lines:\n%s", p.Name, p.err, p.Tail(20))
	}
	return nil
}

// Kill kills the process and its children and waits for the process.
func (p *Process) Kill() {
	p.stopped = true
	// The process leads its own group, which may already be gone.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Log returns the output of the process so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("(the log of %s cannot be read: %v)", p.Name, err)
	}
	return string(text)
}

// Tail returns the last lines of the log.
func (p *Process) Tail(n int) string {
	lines := strings.Split(strings.TrimRight(p.Log(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
