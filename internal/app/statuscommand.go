package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// waitTime is how long --wait waits unless it is told.
const waitTime = time.Minute

// socketFlag adds the flag that says where the daemon answers.
func socketFlag(fs *pflag.FlagSet, socket *string) {
	fs.StringVar(socket, "socket", statusapi.DefaultSocket, "ask the daemon at this unix socket, `FILE`")
}

// newStatusCommand returns the command that shows how this node's Services are.
func newStatusCommand() *cobra.Command {
	var socket string
	var wait time.Duration
	var watch bool
	var o cli.StatusOptions
	cmd := &cobra.Command{
		Use:   "status [NAMESPACE/NAME...]",
		Short: "Show whether Services are in force on this node, problems first",
		Long: `Show how this node's daemon is, what is wrong, and how Services stand in the
kernel. Without names, Services that need attention are shown, or all if they
are few.

Exit code: 0; 1 if --wait was in vain or --problems found some; 2 if the daemon
could not be asked.`,
		Example: `  sluice status
  sluice status shop/cart
  sluice status --wait=30s
  sluice status -A -o wide --sort-by=-connections`,
	}
	fs := cmd.Flags()
	socketFlag(fs, &socket)
	fs.DurationVar(&wait, "wait", 0, "wait until everything known is in force, for up to this `TIME`")
	fs.Lookup("wait").NoOptDefVal = waitTime.String()
	fs.BoolVar(&o.Problems, "problems", false, "show only what somebody should look at")
	fs.BoolVarP(&watch, "watch", "w", false, "go on, and show Services again when they change")
	fs.StringVarP(&o.Output, "output", "o", "", "`FORMAT`: "+strings.Join(cli.StatusFormats, ", "))
	fs.StringVarP(&o.Namespace, "namespace", "n", "", "show the Services of this `NAMESPACE`")
	fs.BoolVarP(&o.All, "all-namespaces", "A", false, "show all Services, however many there are")
	fs.StringVar(&o.SortBy, "sort-by", "", "`COLUMN`: name, used, since, state, connections or bytes; with a minus, the other way round")
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Output != "" && !slices.Contains(cli.StatusFormats, o.Output) {
			return fmt.Errorf("--output %q: want %s", o.Output, strings.Join(cli.StatusFormats, ", "))
		}
		o.Services = args
		return showStatus(cmd, statusapi.AtSocket(socket), o, wait, watch)
	}
	return answering(cmd)
}

func showStatus(cmd *cobra.Command, c *statusapi.Client, o cli.StatusOptions, wait time.Duration, watch bool) error {
	ctx := cmd.Context()
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if err := cli.Wait(limited, c); err != nil {
			return &ExitError{Code: exitFinding, Err: fmt.Errorf("waited %v: %w", wait, err)}
		}
	}
	r, err := cli.Status(ctx, cmd.OutOrStdout(), c, o)
	switch {
	case err != nil:
		return err
	case watch:
		return cli.Follow(ctx, cmd.OutOrStdout(), c, o)
	case o.Problems && r.Troubled():
		return &ExitError{Code: exitFinding}
	}
	return nil
}
