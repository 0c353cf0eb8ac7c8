//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"sluice/internal/conformance/lab"
)

// grace is how long the daemon may take to stop.
const grace = 5 * time.Second

// tailLines is how much of the daemon's log a failure shows.
const tailLines = 15

// daemon is the running sluice.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // why; to be read after done
}

// startDaemon starts a program inside a host, with its output in a file.
func startDaemon(h *lab.Host, cmd *exec.Cmd, log string) (*daemon, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("make the daemon's log: %w", err)
	}
	defer out.Close() // the daemon has a copy
	cmd.Stdout, cmd.Stderr = out, out
	// Ctrl-C is for the demo, which then stops the daemon. Should the demo be
	// killed, the daemon goes too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := h.Start(cmd); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &daemon{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// ended is the error of a daemon that has ended by itself.
func (d *daemon) ended() error {
	if d.err != nil {
		return fmt.Errorf("the daemon has ended by itself: %w", d.err)
	}
	return errors.New("the daemon has ended by itself, without an error")
}

// stop asks the daemon to stop and waits for it.
func (d *daemon) stop() error {
	select {
	case <-d.done:
		return nil // whoever waited for it has said so
	default:
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the daemon: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	select {
	case <-d.done:
	case <-ctx.Done():
		_ = d.cmd.Process.Kill() // it may have ended at this moment
		<-d.done
		return fmt.Errorf("the daemon had not stopped %v after SIGTERM and was killed", grace)
	}
	if d.err != nil {
		return fmt.Errorf("stop the daemon: %w", d.err)
	}
	return nil
}

// tail returns the end of the daemon's log.
func (d *daemon) tail() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return fmt.Sprintf("(the daemon's log cannot be read: %v)", err)
	}
	if len(text) == 0 {
		return "The daemon has logged nothing."
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	all = all[max(0, len(all)-tailLines):]
	return "The daemon's last lines:\n  " + strings.Join(all, "\n  ")
}
