package subprocess

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Process is a program that was started. Any goroutine may use it.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended; the state tells how

	mu   sync.Mutex
	text bytes.Buffer
	said []said
}

// said is how long the log was at a time.
type said struct {
	length int
	at     time.Time
}

// Start has a program started, and follows it.
func Start(cmd *exec.Cmd, start func(*exec.Cmd) error) (*Process, error) {
	p := &Process{Cmd: cmd, Done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if err := start(cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.text.Write(b)
	p.said = append(p.said, said{p.text.Len(), time.Now()})
	return n, err
}

func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Said returns when it first said some words; the zero time: not yet.
func (p *Process) Said(words string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := bytes.Index(p.text.Bytes(), []byte(words))
	if i < 0 {
		return time.Time{}
	}
	first := slices.IndexFunc(p.said, func(s said) bool { return s.length >= i+len(words) })
	return p.said[first].at
}

// End signals the program, waits and returns its exit code.
func (p *Process) End(sig os.Signal) int {
	_ = p.Cmd.Process.Signal(sig) // it may have ended by itself
	<-p.Done
	return p.Cmd.ProcessState.ExitCode()
}
