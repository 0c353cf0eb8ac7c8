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

// grace is how long a process may take to stop when it is asked to.
const grace = 10 * time.Second

// Spec says what to run.
type Spec struct {
	Name string // of the log file; must be new
	Dir  string // for the log file
	Path string
	Args []string
	Env  []string // what differs from the test's own environment

	// NoSignalHandler says that the program does nothing of its own when it is asked
	// to stop, so that the kernel ends it.
	NoSignalHandler bool
}

// Process is a running program.
type Process struct {
	Name string

	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // how it ended; to be read after done

	noSignalHandler bool
	asked           bool // to stop
	stopped         bool // it was waited for, too
}

// Start starts a program inside a host. It ends with the test, even if that
// is killed.
func Start(h *lab.Host, s Spec) (*Process, error) {
	p := &Process{
		Name: s.Name, log: filepath.Join(s.Dir, s.Name+".log"), done: make(chan struct{}), noSignalHandler: s.NoSignalHandler,
	}
	out, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make the log of %s: %w", s.Name, err)
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

// Context returns a context that ends when the process does, with the way that
// it ended as the cause. Its parent must end sooner or later.
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

// Ended returns nil while the process runs, and after that how it ended.
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

// AskToStop asks the process to stop, once, and does not wait. It is an error if it
// had ended by itself.
func (p *Process) AskToStop() error {
	if p.asked {
		return nil
	}
	p.asked = true
	if err := p.Ended(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	return nil
}

// Stop asks the process to stop and waits for it; a second call does nothing.
// It is an error if it had ended by itself, does not stop or says that
// something went wrong.
func (p *Process) Stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	if err := p.AskToStop(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), traffic.Scaled(grace))
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s had not stopped after %v and was killed; its last lines:\n%s", p.Name, grace, p.Tail(20))
	}
	if p.noSignalHandler && p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		return nil
	}
	if p.err != nil {
		return fmt.Errorf("stop %s: %w; its last lines:\n%s", p.Name, p.err, p.Tail(20))
	}
	return nil
}

// Kill ends the process and its children without a word and waits until it is
// gone.
func (p *Process) Kill() {
	p.stopped = true
	// It leads a group of its own. All of it may be gone already.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Log returns all that the process has said so far.
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
