// Command sluice is a Kubernetes service proxy: it makes this node's kernel
// forward every Service to its endpoints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"sluice/internal/app"
	"sluice/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), app.StopSignals()...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args, os.Stderr, reexec))
}

// run runs the command line args, whose first element is the name of the program,
// and returns the exit code. It calls reexec if the daemon asks for a restart.
func run(ctx context.Context, args []string, stderr io.Writer, reexec func() error) int {
	cmd := app.NewProxyCommand(args[0])
	cmd.SetArgs(args[1:])
	err := cmd.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0 // stopped by a signal, possibly while it was still starting
	}
	if exit, ok := errors.AsType[*cli.ExitError](err); ok {
		if exit.Err != nil {
			fmt.Fprintln(stderr, "Error:", exit)
		}
		return exit.Code
	}
	if restart, ok := errors.AsType[*app.RestartError](err); ok {
		if ctx.Err() != nil {
			return 0
		}
		fmt.Fprintln(stderr, "Restarting:", restart)
		err = fmt.Errorf("restart: %w", reexec())
	}
	fmt.Fprintln(stderr, "Error:", err)
	return 1
}
