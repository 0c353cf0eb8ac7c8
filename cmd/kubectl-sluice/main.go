// Command kubectl-sluice is the kubectl plugin kubectl sluice: it queries the sluice
// daemons of a cluster through the API server, with the user's own rights.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // a kubeconfig may use any of the plugins

	"sluice/internal/cli"
	"sluice/internal/kubectl"
)

// version is the release. Only the linker sets it.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run runs the command and returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	cmd := kubectl.NewCommand(cmp.Or(version, "devel"))
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0 // a command that runs until it is interrupted
	}
	exit, ok := errors.AsType[*cli.ExitError](err)
	if !ok {
		exit = &cli.ExitError{Code: cli.ExitNoAnswer, Err: err}
	}
	if exit.Err != nil {
		fmt.Fprintln(stderr, "Error:", exit)
	}
	return exit.Code
}
