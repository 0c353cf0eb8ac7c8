package churn

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"sluice/internal/conformance/lab"
)

// process is a daemon that runs.
type process struct {
	cmd  *exec.Cmd
	file string // its log
	done chan struct{}
}

func start(node *lab.Host, file, program string, args ...string) (*process, error) {
	out, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has a copy
	p := &process{cmd: exec.Command(program, args...), file: file, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := node.Start(p.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the state tells what became of it
		close(p.done)
	}()
	return p, nil
}

// end signals the daemon, waits and returns its exit code.
func (p *process) end(sig syscall.Signal) int {
	_ = p.cmd.Process.Signal(sig) // it may have ended by itself
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// log returns the last lines that it has said.
func (p *process) log() string {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return fmt.Sprintf("(it cannot be read: %v)", err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-50):], "")
}
