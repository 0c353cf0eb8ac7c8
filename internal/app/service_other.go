//go:build !windows

package app

import (
	"context"
	"os"
	"syscall"
)

// StopSignals are those that ask a process to end.
func StopSignals() []os.Signal { return []os.Signal{syscall.SIGINT, syscall.SIGTERM} }

// setPriority does nothing: only Windows has priority classes.
func setPriority(uint32) error { return nil }

// asService runs what a service would do. Files that are for Windows nodes, too,
// ask for one, and kube-proxy ignores that elsewhere.
func (o *Options) asService(ctx context.Context, run func(context.Context) error) error {
	return run(ctx)
}
