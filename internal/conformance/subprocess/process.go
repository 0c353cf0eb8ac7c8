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

	mu     sync.Mutex
	log    bytes.Buffer
	writes []logWrite
}

// logWrite is how long the log was at a time.
type logWrite struct {
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
	n, err := p.log.Write(b)
	p.writes = append(p.writes, logWrite{p.log.Len(), time.Now()})
	return n, err
}

func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// LoggedAt returns when it first said some words; the zero time: not yet.
func (p *Process) LoggedAt(words string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := bytes.Index(p.log.Bytes(), []byte(words))
	if i < 0 {
		return time.Time{}
	}
	first := slices.IndexFunc(p.writes, func(s logWrite) bool { return s.length >= i+len(words) })
	return p.writes[first].at
}

// End signals the program, waits and returns its exit code.
func (p *Process) End(sig os.Signal) int {
	_ = p.Cmd.Process.Signal(sig) // it may have ended by itself
	<-p.Done
	return p.Cmd.ProcessState.ExitCode()
}
