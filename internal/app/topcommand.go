package app

import (
	"github.com/spf13/cobra"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// newTopCommand returns the command that shows the traffic of Services.
func newTopCommand() *cobra.Command {
	var socket string
	var o cli.TopOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the traffic of Services on this node, as it goes",
		Long: `Show connections, bytes and refusals of each Service, the busiest first: again
and again on a terminal, and else once, over one period.`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	socketFlag(fs, &socket)
	o.AddFlags(fs)
	completeFlag(cmd, "sort-by", cli.TopColumns)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		return cli.ShowTop(cmd.Context(), cmd.OutOrStdout(), statusapi.AtSocket(socket), o)
	}
	return cli.Answering(cmd)
}
