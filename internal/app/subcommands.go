package app

import "github.com/spf13/cobra"

// subcommands are what sluice can do besides serving. Called as kube-proxy it
// has none, as kube-proxy has none.
func subcommands() []*cobra.Command {
	return []*cobra.Command{
		newStatusCommand(),
		newExplainCommand(),
		newTopCommand(),
		newRenderCommand(),
		newBugReportCommand(),
		newManCommand(),
		newDialStdioCommand(),
	}
}
