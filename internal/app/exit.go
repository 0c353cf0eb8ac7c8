package app

import (
	"github.com/spf13/cobra"

	"sluice/internal/cli"
)

// The codes that a command which answers a question exits with, if not with 0.
const (
	exitFinding  = cli.ExitFinding
	exitNoAnswer = cli.ExitNoAnswer
)

// ExitError says with which code the process ends.
type ExitError = cli.ExitError

// answering makes a command one that answers a question.
func answering(cmd *cobra.Command) *cobra.Command { return cli.Answering(cmd) }
