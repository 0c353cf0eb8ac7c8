package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

const (
	// serviceName is what the event log calls us. The service control manager does
	// not ask the name of who has a process of its own.
	serviceName = "sluice"
	// stopTime is how long the service control manager is to wait for the end.
	stopTime = 30 * time.Second
	// maxEvent is how long an event may be, in bytes: Windows takes 31,839 characters.
	maxEvent = 31000
)

// StopSignals are those that ask a process to end: Ctrl-C and Ctrl-Break, and that
// the console is closed. A service gets the latter whenever some user logs off, and
// must go on.
func StopSignals() []os.Signal {
	if is, err := svc.IsWindowsService(); err == nil && is {
		return []os.Signal{os.Interrupt}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM}
}

func setPriority(class uint32) error {
	return windows.SetPriorityClass(windows.CurrentProcess(), class)
}

// asService runs something under the service control manager, which may ask for
// its end. What is logged goes to the event log as well.
func (o *Options) asService(ctx context.Context, run func(context.Context) error) error {
	// Whoever may not register the source can still write; the event viewer then
	// complains that it has no description, and shows the text.
	_ = eventlog.InstallAsEventCreate(serviceName, eventlog.Error|eventlog.Warning|eventlog.Info)
	log, err := eventlog.Open(serviceName)
	if err != nil {
		return fmt.Errorf("--windows-service: open the event log: %w", err)
	}
	defer func() { _ = log.Close() }()
	o.log = eventWriter{log: log, also: os.Stderr}
	s := &service{ctx: context.WithoutCancel(ctx), run: run}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("--windows-service: answer the service control manager, which is to start this process: %w", err)
	}
	if s.err != nil {
		fmt.Fprintf(o.log, "E Ended: %v", s.err)
	}
	return s.err
}

// service is what the service control manager controls.
type service struct {
	ctx context.Context // which only the manager ends
	run func(context.Context) error
	err error // after the end
}

// Execute implements [svc.Handler]. A failure is an exit code of the service, by
// which the manager can be told to start it again.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown | svc.AcceptParamChange}
	for {
		select {
		case err := <-ended:
			if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
				s.err = err
			}
			if s.err != nil {
				return true, 1
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: uint32(stopTime.Milliseconds())}
				stop()
			default:
				status <- r.CurrentStatus
			}
		}
	}
}

// eventWriter writes lines of the log, one at a time, to the event log as well.
type eventWriter struct {
	log  *eventlog.Log
	also io.Writer // which a service may not have, so its errors are none
}

// Write takes a line.
func (w eventWriter) Write(line []byte) (int, error) {
	_, _ = w.also.Write(line)
	if len(line) == 0 {
		return 0, nil
	}
	report, id := w.log.Info, uint32(1)
	switch severity(line) {
	case 'W':
		report, id = w.log.Warning, 2
	case 'E', 'F':
		report, id = w.log.Error, 3
	}
	return len(line), report(id, string(line[:min(len(line), maxEvent)]))
}
