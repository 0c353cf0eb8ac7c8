package app

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// socketFlag adds the flag that says where the daemon answers.
func socketFlag(fs *pflag.FlagSet, socket *string) {
	fs.StringVar(socket, "socket", statusapi.DefaultSocket, "ask the daemon at this unix socket, `FILE`")
}

// newStatusCommand returns the command that shows how this node's Services are.
func newStatusCommand() *cobra.Command {
	var socket string
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
	o.AddFlags(fs)
	completeFlag(cmd, "output", cli.StatusFormats)
	cmd.ValidArgsFunction = completeServices(&socket)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		o.Services = args
		return cli.ShowStatus(cmd.Context(), cmd.OutOrStdout(), statusapi.AtSocket(socket), o)
	}
	return cli.Answering(cmd)
}
