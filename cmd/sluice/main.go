// Command sluice is a Kubernetes service proxy: it makes this node's kernel
// forward every Service to its endpoints.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"sluice/internal/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // A second signal ends the process at once.
	os.Exit(run(ctx, os.Args, os.Stderr))
}

// run returns the exit code. The first argument is the name that the program
// was called by.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	cmd := app.NewProxyCommand(args[0])
	cmd.SetArgs(args[1:])
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "Error:", err)
		return 1
	}
	return 0
}
