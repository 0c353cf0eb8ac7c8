package subprocess

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Process is a running or ended program. Its methods may be called concurrently.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended; Cmd.ProcessState says how

	mu     sync.Mutex
	log    bytes.Buffer
	writes []logWrite
}

// logWrite is the length of the log after a write, and the time of the write.
type logWrite struct {
	length int
	at     time.Time
}

// Start starts a program by calling start, and collects its output.
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

// LoggedAt returns when the program first wrote the text; the zero time means not yet.
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

// End sends a signal, waits for the program to end and returns its exit code.
func (p *Process) End(sig os.Signal) int {
	_ = p.Cmd.Process.Signal(sig) // an error means that it has already ended
	<-p.Done
	return p.Cmd.ProcessState.ExitCode()
}
