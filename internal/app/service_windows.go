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
	// serviceName is the source of our events in the event log. The service control
	// manager ignores the name of a service that has a process of its own.
	serviceName = "sluice"
	// stopTime is how long the service control manager shall wait for us to stop.
	stopTime = 30 * time.Second
	// maxEvent is the maximum length of an event in bytes: Windows accepts 31,839 characters.
	maxEvent = 31000
)

// StopSignals returns the signals that ask the process to stop: Ctrl-C and
// Ctrl-Break (os.Interrupt), and the closing of the console (SIGTERM). A service
// receives the latter whenever a user logs off, and must ignore it.
func StopSignals() []os.Signal {
	if is, err := svc.IsWindowsService(); err == nil && is {
		return []os.Signal{os.Interrupt}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM}
}

func setPriority(class uint32) error {
	return windows.SetPriorityClass(windows.CurrentProcess(), class)
}

// asService calls run under the service control manager, which can stop it. The log
// also goes to the event log.
func (o *Options) asService(ctx context.Context, run func(context.Context) error) error {
	// Without the right to register the source we can still write events; the event
	// viewer then shows their text after a complaint about a missing description.
	_ = eventlog.InstallAsEventCreate(serviceName, eventlog.Error|eventlog.Warning|eventlog.Info)
	log, err := eventlog.Open(serviceName)
	if err != nil {
		return fmt.Errorf("--windows-service: open the event log: %w", err)
	}
	defer func() { _ = log.Close() }()
	o.log = eventWriter{log: log, also: os.Stderr}
	s := &service{ctx: context.WithoutCancel(ctx), run: run}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("--windows-service: connect to the service control manager, which must start this process: %w", err)
	}
	if s.err != nil {
		fmt.Fprintf(o.log, "E Stopped: %v", s.err)
	}
	return s.err
}

// service implements [svc.Handler].
type service struct {
	ctx context.Context // only the service control manager ends it
	run func(context.Context) error
	err error // the result of run
}

// Execute implements [svc.Handler]. A failure becomes a service-specific exit code,
// for which the service control manager can be configured to restart the service.
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

// eventWriter writes lines of the log to another writer and to the event log.
type eventWriter struct {
	log  *eventlog.Log
	also io.Writer // its errors are ignored: a service may not have standard error
}

// Write writes one line.
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
