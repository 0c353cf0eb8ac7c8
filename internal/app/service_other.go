//go:build !windows

package app

import (
	"context"
	"os"
	"syscall"
)

// StopSignals returns the signals that ask the process to stop.
func StopSignals() []os.Signal { return []os.Signal{syscall.SIGINT, syscall.SIGTERM} }

// setPriority does nothing: only Windows has priority classes.
func setPriority(uint32) error { return nil }

// asService only calls run: a configuration file that is shared with Windows nodes
// may ask for a service, and kube-proxy ignores that elsewhere, too.
func (o *Options) asService(ctx context.Context, run func(context.Context) error) error {
	return run(ctx)
}
