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
	context.AfterFunc(ctx, stop) // A second signal ends the process at once.
	os.Exit(run(ctx, os.Args, os.Stderr, again))
}

// run returns the exit code. The first argument is the name that the program
// was called by. It calls again when a new daemon is to take its place.
func run(ctx context.Context, args []string, stderr io.Writer, again func() error) int {
	cmd := app.NewProxyCommand(args[0])
	cmd.SetArgs(args[1:])
	err := cmd.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0 // told to stop, even if it had hardly begun
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
		err = fmt.Errorf("restart: %w", again())
	}
	fmt.Fprintln(stderr, "Error:", err)
	return 1
}
